"""The report's page; templates/report.html has its sections, from results to how they were made."""

from runtime.report import run_plots
from runtime.report.contents import Report
from runtime.report.heat_map import MOST_CELLS_OF_A_REPORT, heat_map
from runtime.report.html import document, figure_scripts, source
from runtime.report.score_curves import CAPTION as SCORES
from runtime.report.score_doubts import doubts, noise
from runtime.tracking.stalls import PAGE_FILE

TIMELINE = "A branch begins at the tokens at which it leaves the main line and is not part of the axis' total."
LOSS = (
    "Pale: the recorded values; strong: smoothed over neighbours by the slider. Drag to zoom: all figures over tokens "
    "follow. The axis does not begin at 0, and what lies above it in the first 3 % of the tokens is off it; “Fit y” "
    "shows it."
)
SOURCE_LOSSES = "Cross-entropy of the positions of each source."
BRANCHES = "Lines join the phases of the main line; branches have a mark each. Axes differ from panel to panel."


def render(report: Report) -> str:
    """Return the whole page as text, without sections that show nothing: the same report gives the same bytes."""
    figures = {
        "timeline": run_plots.timeline(report, TIMELINE),
        "loss": run_plots.loss(report, LOSS),
        "source_losses": run_plots.source_losses(report, SOURCE_LOSSES),
        "domains": run_plots.domains(report, BRANCHES),
        "scores": run_plots.scores(report, SCORES),
    }
    return document(
        report.title,
        report.introduction,
        scripts=(*figure_scripts(), *([source("heat_map.js")] if report.windows else [])),
        template="report.html",
        report=report,
        figures=figures,
        heat_map=heat_map(report.moments, report.windows, MOST_CELLS_OF_A_REPORT) if report.windows else None,
        noise=noise(report.scores),
        doubts=doubts(report),
        stalls_file=PAGE_FILE,
    )
