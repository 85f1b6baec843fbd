"""The data stalls of a run as a page: how long each phase waited for data, why, and every stall.

The page is made on request and is no part of the report, since times differ between equal runs.
"""

import functools
from collections.abc import Sequence

from runtime.report.document import document
from runtime.report.markup import Markup, element, joined
from runtime.report.page import figure
from runtime.report.plots import TEXT_SIZE, Frame, colour_of, drawing, name_column, straight, text
from runtime.report.scales import Scale, counted, fitted, text_width, tick_labels
from runtime.report.tables import CONTINUED, Cell, Column, table
from runtime.tracking.stalls import DataStalls

_ROW, _BAR = 26.0, 16.0
_CAPTION = (
    "Seconds that the training loop waited for its next batch, by what the loader was doing meanwhile; the first batch "
    "of each attempt is in it. Behind each bar: its share of the time in the loop, and stalls of more than a second."
)


def page(title: str, phases: Sequence[DataStalls], notes: Sequence[str] = ()) -> str:
    """Return the whole page; `phases` in the order in which they are shown, each of `notes` a sentence below them."""
    causes = causes_of(phases)
    keys = [
        element("li", drawing(14, 14, "", _swatch(index)), cause) for index, cause in enumerate(causes)
    ]  # fmt: skip
    waited, seconds = sum(waits.waited_seconds for waits in phases), sum(waits.seconds for waits in phases)
    stalls = sum(len(waits.stalls) for waits in phases)
    summary_text = (
        f"{counted(len(phases), 'phase')} waited {waited:.1f} s for data, {waited / max(seconds, 1e-9):.2%} of "
        f"{seconds:,.0f} s in the loop; {counted(stalls, 'stall')} of more than a second."
    )
    shown = element(
        "main",
        element("header", element("h1", title), element("p", summary_text, class_="lead")),
        figure(functools.partial(bars, phases), _CAPTION),
        element("ul", *keys, class_="keys"),
        waits_table(phases),
        *(element("p", f"{note}.") for note in notes),
        stalls_table(phases) if stalls else element("p", "No stall was longer than a second."),
    )
    return document(title, shown)


def causes_of(phases: Sequence[DataStalls]) -> list[str]:
    """Causes of all phases, the one of most seconds first."""
    total: dict[str, float] = {}
    for waits in phases:
        for cause, seconds in waits.by_cause.items():
            total[cause] = total.get(cause, 0.0) + seconds
        for cause in waits.stalls_by_cause:
            total.setdefault(cause, 0.0)
    return sorted(total, key=lambda cause: (-total[cause], cause))


def bars(phases: Sequence[DataStalls], width: float) -> Markup:
    """Return a row for each phase, its bar cut by cause."""
    causes = causes_of(phases)
    summary_text = [_summary(waits) for waits in phases]
    left = name_column([waits.phase for waits in phases], width)
    right = width - max(text_width(words, TEXT_SIZE) for words in summary_text) - 10
    most = max(*(sum(waits.by_cause.values()) for waits in phases), 1e-3)
    bottom = len(phases) * _ROW + 22
    frame = Frame(Scale(0, most, left, max(right, left + 40)), Scale(0, 1, bottom, 22))
    parts: list[str] = [text("seconds waited for data", left, 10, class_="title")]
    ticks = frame.x.ticks(max(2, int((frame.right - frame.left) / 90)))
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        parts.append(straight(frame.x(tick), frame.top, frame.x(tick), frame.bottom, "grid"))
        parts.append(text(label, frame.x(tick), frame.bottom + 14, "middle"))
    for row, (waits, words) in enumerate(zip(phases, summary_text, strict=True)):
        y = frame.top + row * _ROW + (_ROW - _BAR) / 2
        parts.append(text(fitted(waits.phase, left - 10, TEXT_SIZE), left - 8, y + 12, "end", "name"))
        begin = 0.0
        for index, cause in enumerate(causes):
            seconds = waits.by_cause.get(cause, 0.0)
            if seconds:
                low, high = frame.x(begin), frame.x(begin + seconds)
                shape = {"x": low, "y": y, "width": max(high - low, 0.5), "height": _BAR}
                tip = f"{waits.phase}: {seconds:.2f} s for {cause}"
                parts.append(element("rect", style=f"fill:{colour_of(index)}", data_tip=tip, **shape))
                begin += seconds
        parts.append(text(words, frame.x(begin) + 6, y + 12))
    return drawing(width, bottom + 22, f"Data stalls of {counted(len(phases), 'phase')}", *parts)


def waits_table(phases: Sequence[DataStalls]) -> Markup:
    """Return seconds by phase and cause."""
    causes = causes_of(phases)
    numbers = ["attempts", "in the loop, s", "waited, s", "share", *(f"{cause}, s" for cause in causes)]
    rows: list[list[str | Cell]] = []
    for waits in phases:
        by_cause = [f"{waits.by_cause[cause]:.2f}" if cause in waits.by_cause else "–" for cause in causes]
        figures = [f"{waits.seconds:,.1f}", f"{waits.waited_seconds:.2f}", f"{waits.share:.2%}", *by_cause]
        rows.append([waits.phase, str(waits.num_attempts), *figures])
    columns = [Column("phase"), *(Column(name, "number") for name in numbers)]
    return table(columns, rows, "Data stalls by phase and cause")


def stalls_table(phases: Sequence[DataStalls]) -> Markup:
    """Return number, seconds and the longest of the stalls, by phase and cause."""
    columns = [
        Column("phase"), Column("mostly for"), Column("stalls", "number"), Column("seconds", "number"),
        Column("longest, s", "number"), Column("before step", "number"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for waits in phases:
        for place, (cause, (number, seconds)) in enumerate(sorted(waits.stalls_by_cause.items())):
            longest = max((stall for stall in waits.stalls if stall.cause == cause), key=lambda stall: stall.seconds)
            name: str | Cell = waits.phase if place == 0 else CONTINUED
            figures = (f"{number:,}", f"{seconds:.1f}", f"{longest.seconds:.1f}", f"{longest.step + 1:,}")
            rows.append([name, cause, *figures])
    return table(columns, rows, "Stalls of more than a second, by their main cause")


def _summary(waits: DataStalls) -> str:
    stalls = f", {counted(len(waits.stalls), 'stall')}" if waits.stalls else ""
    return f"{waits.waited_seconds:.2f} s, {waits.share:.2%}{stalls}"


def _swatch(index: int) -> Markup:
    return joined([element("rect", x=1, y=1, width=12, height=12, rx=2, style=f"fill:{colour_of(index)}")])
