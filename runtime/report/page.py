"""The report's page; templates/report.html has its sections, from results to how they were made."""

from markupsafe import Markup

from runtime.report import law_plots, run_plots
from runtime.report.contents import Report
from runtime.report.heat_map import MOST_CELLS_OF_A_REPORT, heat_map
from runtime.report.html import document, figure_scripts, source
from runtime.report.score_doubts import doubts, noise

RUN_PAGE = "run.html"
"""Page above the folder of a report, with what differs between equal runs; no part of an output."""
_RUN = '<section id="run">'


def render(report: Report) -> str:
    """Return the whole page as text, without sections that show nothing: the same report gives the same bytes."""
    return document(
        report.title,
        report.introduction,
        scripts=(*figure_scripts(), *([source("heat_map.js")] if report.windows else [])),
        template="report.html",
        report=report,
        run_plots=run_plots,
        law_plots=law_plots,
        heat_map=heat_map(report.moments, report.windows, MOST_CELLS_OF_A_REPORT) if report.windows else "",
        noise=noise(report.scores),
        doubts=doubts(report),
        run_page=RUN_PAGE,
    )


def with_run(page: str, run: Markup) -> str:
    """Return a report's page with the section `run` in the place of the link to it."""
    before, found, after = page.partition(_RUN)
    if not found:
        raise ValueError("the report has no place for its run: an older version wrote it.")
    return f"{before}{_RUN}{run}{after[after.index('</section>') :]}"
