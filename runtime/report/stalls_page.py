"""The data stalls of a run as a page: how long each phase waited for data, why, and every stall.

The page is made on request and is no part of the report, since times differ between equal runs.
"""

from collections.abc import Sequence

from runtime.report.document import document
from runtime.report.figures import figure
from runtime.report.labels import counted
from runtime.report.markup import Markup, element
from runtime.report.panel import series_of, stacked_bars
from runtime.report.tables import CONTINUED, Cell, Column, table
from runtime.tracking.stalls import DataStalls

_CAPTION = (
    "Seconds that the training loop waited for its next batch, by what the loader was doing meanwhile; the first batch "
    "of each attempt is in it."
)


def page(title: str, phases: Sequence[DataStalls], notes: Sequence[str] = ()) -> str:
    """Return the whole page; `phases` in the order in which they are shown, each of `notes` a sentence below them."""
    waited, seconds = sum(found.waited_seconds for found in phases), sum(found.seconds for found in phases)
    num_stalls = sum(len(found.stalls) for found in phases)
    summary = (
        f"{counted(len(phases), 'phase')} waited {waited:.1f} s for data, {waited / max(seconds, 1e-9):.2%} of "
        f"{seconds:,.0f} s in the loop; {counted(num_stalls, 'stall')} of more than a second."
    )
    shown = element(
        "main",
        element("header", element("h1", title), element("p", summary, class_="lead")),
        bars(phases),
        seconds_table(phases),
        *(element("p", f"{note}.") for note in notes),
        stalls_table(phases) if num_stalls else element("p", "No stall was longer than a second."),
    )
    return document(title, shown)


def causes_of(phases: Sequence[DataStalls]) -> list[str]:
    """Causes of all phases, the one of most seconds first."""
    total: dict[str, float] = {}
    for found in phases:
        for cause, seconds in found.by_cause.items():
            total[cause] = total.get(cause, 0.0) + seconds
        for cause in found.stalls_by_cause:
            total.setdefault(cause, 0.0)
    return sorted(total, key=lambda cause: (-total[cause], cause))


def bars(phases: Sequence[DataStalls]) -> Markup:
    """Return a row for each phase, its bar cut by cause."""
    series = series_of(causes_of(phases))
    pieces = {
        found.phase: {
            cause: (seconds, f"{found.phase}: {seconds:.2f} s for {cause}") for cause, seconds in found.by_cause.items()
        }
        for found in phases
    }
    return figure([stacked_bars("seconds waited for data", pieces, series, x_format="0.[00]")], _CAPTION, legend=series)


def seconds_table(phases: Sequence[DataStalls]) -> Markup:
    """Return seconds by phase and cause."""
    causes = causes_of(phases)
    numbers = ["attempts", "in the loop, s", "waited, s", "share", *(f"{cause}, s" for cause in causes)]
    rows: list[list[str | Cell]] = []
    for found in phases:
        by_cause = [f"{found.by_cause[cause]:.2f}" if cause in found.by_cause else "–" for cause in causes]
        figures = [f"{found.seconds:,.1f}", f"{found.waited_seconds:.2f}", f"{found.share:.2%}", *by_cause]
        rows.append([found.phase, str(found.num_attempts), *figures])
    columns = [Column("phase"), *(Column(name, "number") for name in numbers)]
    return table(columns, rows, "Data stalls by phase and cause")


def stalls_table(phases: Sequence[DataStalls]) -> Markup:
    """Return number, seconds and the longest of the stalls, by phase and cause."""
    columns = [
        Column("phase"), Column("mostly for"), Column("stalls", "number"), Column("seconds", "number"),
        Column("longest, s", "number"), Column("before step", "number"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for found in phases:
        for place, (cause, (number, seconds)) in enumerate(sorted(found.stalls_by_cause.items())):
            longest = max((stall for stall in found.stalls if stall.cause == cause), key=lambda stall: stall.seconds)
            name: str | Cell = found.phase if place == 0 else CONTINUED
            figures = (f"{number:,}", f"{seconds:.1f}", f"{longest.seconds:.1f}", f"{longest.step + 1:,}")
            rows.append([name, cause, *figures])
    return table(columns, rows, "Stalls of more than a second, by their main cause")
