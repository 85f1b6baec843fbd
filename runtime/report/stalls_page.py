"""The data stalls of a run as a page: how long each phase waited for data, and why.

The page is made on request and is no part of the report, since times differ between equal runs.
"""

from collections.abc import Sequence

from runtime.report.document import document
from runtime.report.figures import figure
from runtime.report.markup import Markup, element, table
from runtime.report.panel import series_of, stacked_bars
from runtime.report.recipe import counted
from runtime.tracking.stalls import DataStalls

_CAPTION = (
    "Seconds that the training loop waited for its next batch, by what the loader was doing meanwhile; the first batch "
    "of each attempt is in it."
)


def page(title: str, phases: Sequence[DataStalls], notes: Sequence[str] = ()) -> str:
    """Return the whole page; `phases` in the order in which they are shown."""
    waited, seconds = sum(found.waited_seconds for found in phases), sum(found.seconds for found in phases)
    num_stalls = sum(len(found.stalls) for found in phases)
    lead = (
        f"{counted(len(phases), 'phase')} waited {waited:.1f} s for data, {waited / max(seconds, 1e-9):.2%} of "
        f"{seconds:,.0f} s in the loop; {counted(num_stalls, 'stall')} of more than a second."
    )
    causes = causes_of(phases)
    series = series_of(causes)
    pieces = {
        found.phase: {cause: (length, f"{found.phase}: {length:.2f} s for {cause}")
                      for cause, length in found.by_cause.items()}
        for found in phases
    }  # fmt: skip
    bars = stacked_bars("seconds waited for data", pieces, series, x_format="0.[00]")
    stalls = _stalls_table(phases) if num_stalls else element("p", "No stall was longer than a second.")
    return document(
        title, lead, figure([bars], _CAPTION, legend=series), _seconds_table(phases, causes), stalls, notes=notes
    )


def causes_of(phases: Sequence[DataStalls]) -> list[str]:
    """Return the causes of all phases, the one of most seconds first."""
    total: dict[str, float] = {}
    for found in phases:
        for cause, seconds in (dict.fromkeys(found.stalls_by_cause, 0.0) | dict(found.by_cause)).items():
            total[cause] = total.get(cause, 0.0) + seconds
    return sorted(total, key=lambda cause: (-total[cause], cause))


def _seconds_table(phases: Sequence[DataStalls], causes: Sequence[str]) -> Markup:
    headings = ["phase", "#attempts", "#in the loop, s", "#waited, s", "#share", *(f"#{cause}, s" for cause in causes)]
    rows = []
    for found in phases:
        by_cause = [f"{found.by_cause[cause]:.2f}" if cause in found.by_cause else "–" for cause in causes]
        figures = [f"{found.seconds:,.1f}", f"{found.waited_seconds:.2f}", f"{found.share:.2%}", *by_cause]
        rows.append([found.phase, str(found.num_attempts), *figures])
    return table(headings, rows, "Data stalls by phase and cause")


def _stalls_table(phases: Sequence[DataStalls]) -> Markup:
    """Return number, seconds and the longest of the stalls, by phase and cause."""
    headings = ["phase", "mostly for", "#stalls", "#seconds", "#longest, s", "#before step"]
    rows = []
    for found in phases:
        for cause, (number, seconds) in sorted(found.stalls_by_cause.items()):
            longest = max((stall for stall in found.stalls if stall.cause == cause), key=lambda stall: stall.seconds)
            figures = (f"{number:,}", f"{seconds:.1f}", f"{longest.seconds:.1f}", f"{longest.step + 1:,}")
            rows.append([found.phase, cause, *figures])
    return table(headings, rows, "Stalls of more than a second, by their main cause", grouped=1)
