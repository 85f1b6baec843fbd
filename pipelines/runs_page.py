"""Runs page: the table of runs in a page that sorts and filters it, and compares the runs that are chosen."""

from collections.abc import Sequence
from typing import Any

from marin_dag.errors import UserError
from marin_dag.quantities import counted
from pipelines.comparison_table import comparison_notes, comparison_rows
from pipelines.run_comparison import ReadRun, comparison, lines_of, read_run, titles
from pipelines.runs import Run
from runtime.report.curve_plots import Line, curves
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
    wanted = [*chosen, *(run for run in finished if run not in chosen)][: max(MOST_COMPARED, len(chosen))]
    compared, lines, left_out = _read(wanted, every) if len(wanted) > 1 else ({}, [], [])
    content = {
        title: {other: _pair(title, one, two) for other, two in compared.items() if other != title}
        for title, one in compared.items()
    }
    end = max((float(line.tokens[-1]) for line in lines), default=1.0)
    names = {(one.run.prefix, one.run.key): title for title, one in compared.items()}
    titled = [(names.get((run.prefix, run.key), ""), row) for run, row in zip(runs, rows, strict=True)]
    ticked = [names[run.prefix, run.key] for run in chosen if (run.prefix, run.key) in names]
    lead = f"{counted(len(runs), 'run')}, read from the records of the prefixes; {note}."
    if len(wanted) < len(finished) > 1:
        lead += f" The first {MOST_COMPARED} finished runs can be compared; name fewer for others."
    shown = curves(lines, end=1.01 * end) if lines else ""
    table = macro("runs.html", "table", headings, titled, content, ticked, shown)
    scripts = (*(figure_scripts() if lines else ()), source("runs.js"))
    return document(title, lead, table, notes=left_out, scripts=scripts)


def _read(wanted: Sequence[Run], every: Sequence[Run]) -> tuple[dict[str, ReadRun], list[Line], list[str]]:
    """Return the runs that can be compared by their titles, their curves, and a note on each other run."""
    compared: dict[str, ReadRun] = {}
    lines: list[Line] = []
    left_out = []
    for run, title in zip(wanted, titles(wanted), strict=True):
        try:
            lines_of_run = lines_of(run, title)
            compared[title] = read_run(run, every)
        except UserError as error:  # the page still compares the other runs
            left_out.append(f"Not compared: {str(error).removesuffix('.')}")
        else:
            lines += lines_of_run
    return (compared, lines, left_out) if len(compared) > 1 else ({}, [], left_out)


def _pair(title: str, one: ReadRun, two: ReadRun) -> dict[str, Any]:
    """Return what the page shows of a run beside the run of a title, whatever other runs are chosen."""
    found = comparison((one, two))
    rows = comparison_rows(found, MOST_CHARACTERS)[1:]
    num_settings = len(found.settings)
    notes = comparison_notes(found, title)
    return {"settings": rows[:num_settings], "figures": rows[num_settings:], "notes": notes}
