"""Runs page: the table of runs in a page that sorts and filters it, and compares the runs that are chosen."""

from collections.abc import Sequence

from marin_dag.quantities import counted
from pipelines.comparison_table import comparison_notes, comparison_rows
from pipelines.run_comparison import comparisons, lines_of, titles
from pipelines.runs import Run
from runtime.report.curve_plots import curves
from runtime.report.html import document, figure_scripts, macro, source

MOST_COMPARED = 12
"""Most finished runs that a page can compare, since it holds their curves."""
MOST_CHARACTERS = 2_000


def page(
    title: str,
    note: str,
    runs: Sequence[Run],
    every: Sequence[Run],
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    chosen: Sequence[Run],
) -> str:
    """Return the whole page.

    Args:
        title: heading of the page.
        note: what a figure of the table means.
        runs: one for each row of the table.
        every: all runs, among them those that differ from one of `runs` by the seed.
        headings: one for each column; "#" marks a column of numbers.
        rows: texts of the table.
        chosen: runs that are compared when the page opens.
    """
    finished = [run for run in runs if run.state == "done"]
    compared = [*chosen, *(run for run in finished if run not in chosen)][: max(MOST_COMPARED, len(chosen))]
    compared = compared if len(compared) > 1 else []
    names = dict(zip((run.key for run in compared), titles(compared), strict=True))
    content = {}
    for comparison in comparisons(compared, every):
        (_, *columns), *found = comparison_rows(comparison, MOST_CHARACTERS)
        num_settings = len(comparison.settings)
        content[columns[0]] = {
            "names": columns,
            "settings": found[:num_settings],
            "figures": found[num_settings:],
            "notes": "; ".join(comparison_notes(comparison)) + ".",
        }
    lines = lines_of(compared)
    end = max((float(line.tokens[-1]) for line in lines), default=1.0)
    titled = [(names.get(run.key, ""), row) for run, row in zip(runs, rows, strict=True)]
    lead = f"{counted(len(runs), 'run')}, read from the records of the prefixes; {note}."
    if len(compared) < len(finished) > 1:
        lead += f" The first {MOST_COMPARED} finished runs can be compared; name fewer for others."
    shown = curves(lines, end=1.01 * end) if lines else ""
    table = macro("runs.html", "table", headings, titled, content, [names[run.key] for run in chosen], shown)
    return document(title, lead, table, scripts=(*(figure_scripts() if lines else ()), source("runs.js")))
