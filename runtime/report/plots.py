"""Plots: the drawing that every figure shares, in SVG whose colours are variables of the page.

A figure is drawn twice, for a wide page and for a telephone, because scaling one drawing down to 360 pixels
makes its text unreadable. Nothing here takes the time, a random number or an id, so equal values give equal bytes.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from runtime.report.markup import Markup, element, joined, number
from runtime.report.scales import Scale, fitted, rate_label, text_width, tick_labels, token_unit, tokens_label

Values = Sequence[float] | np.ndarray
TEXT_SIZE = 11.0
"""Pixels; the style sheet says the same."""
_GUESSED_SHARE = 0.03
"""Share of a run's tokens in which a model learns little more than which words are frequent."""


@dataclasses.dataclass(frozen=True)
class Band:
    """A named stretch of the x axis."""

    name: str
    low: float
    high: float
    tip: str = ""


@dataclasses.dataclass(frozen=True)
class Frame:
    """A panel: an x scale from left to right and a y scale from bottom to top."""

    x: Scale
    y: Scale

    @property
    def left(self) -> float:
        return self.x.start

    @property
    def right(self) -> float:
        return self.x.end

    @property
    def bottom(self) -> float:
        return self.y.start

    @property
    def top(self) -> float:
        return self.y.end


def name_column(names: Sequence[str], width: float) -> float:
    """Return pixels for the names left of the rows of a drawing, which keep most of its width; see `scales.fitted`."""
    return min(max(text_width(name, TEXT_SIZE) for name in names) + 12, width * 0.42)


def drawing(width: float, height: float, description: str, *children: str) -> Markup:
    """Return an SVG that fills the width of its place and keeps its proportions."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=description,
        preserveAspectRatio="xMidYMin meet",
    )


def text(
    content: str, x: float, y: float, anchor: str = "start", class_: str | None = None, **more: str | None
) -> Markup:
    """Text at a point; `anchor` is start, middle or end."""
    return element("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_, **more)


def straight(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def horizontal_ticks(frame: Frame, ticks: Sequence[float], labels: Sequence[str]) -> Markup:
    """Return grid lines and labels of the y axis."""
    parts: list[str] = []
    for tick, label in zip(ticks, labels, strict=True):
        y = frame.y(tick)
        parts.append(straight(frame.left, y, frame.right, y, "grid"))
        parts.append(text(label, frame.left - 6, y + 3.8, "end"))
    return joined(parts)


def y_axis(frame: Frame, title: str, at_most: int = 6) -> Markup:
    """Return grid, labels and the title above the axis, where it can be read without turning one's head."""
    ticks = frame.y.ticks(at_most)
    labels = [rate_label(tick) for tick in ticks] if frame.y.kind == "log" else tick_labels(ticks)
    return joined([horizontal_ticks(frame, ticks, labels), text(title, 2, frame.top - 8, class_="title")])


def token_axis(frame: Frame, title: str = "tokens consumed", at_most: int | None = None) -> Markup:
    """Return ticks below the frame, in one unit that the title names."""
    at_most = at_most or max(3, int((frame.right - frame.left) / 75))
    divisor, unit = token_unit(frame.x.high)
    ticks = frame.x.ticks(at_most)
    parts: list[str] = [straight(frame.left, frame.bottom, frame.right, frame.bottom, "axis")]
    for tick, label in zip(ticks, tick_labels([tick / divisor for tick in ticks]), strict=True):
        x = frame.x(tick)
        parts.append(straight(x, frame.bottom, x, frame.bottom + 4, "axis"))
        parts.append(text(f"{label}{unit}" if tick else "0", x, frame.bottom + 16, "middle"))
    parts.append(text(title, frame.right, frame.bottom + 32, "end", "title"))
    return joined(parts)


def bands(frame: Frame, phases: Sequence[Band], top: float | None = None) -> Markup:
    """Return every second stretch shaded, with a hair line at each border."""
    top = frame.top if top is None else top
    parts: list[str] = []
    for index, band in enumerate(phases):
        low, high = frame.x(band.low), frame.x(band.high)
        parts.append(
            element(
                "rect",
                x=low,
                y=top,
                width=high - low,
                height=frame.bottom - top,
                class_="band odd" if index % 2 else "band",
                data_tip=band.tip or None,
            )
        )
        if index:
            parts.append(straight(low, top, low, frame.bottom, "border"))
    return joined(parts)


def band_names(frame: Frame, phases: Sequence[Band], bottom: float) -> tuple[Markup, int]:
    """Return names over the stretches, in as many rows as keep them apart, and that number of rows."""
    row_ends: list[float] = []
    placed: list[tuple[float, int, float, str]] = []
    for band in phases:
        name = fitted(band.name, frame.right - frame.left, TEXT_SIZE)
        width = text_width(name, TEXT_SIZE)
        middle = frame.x((band.low + band.high) / 2)
        centre = max(frame.left + width / 2, min(frame.right - width / 2, middle))
        row = next((row for row, end in enumerate(row_ends) if end + 8 <= centre - width / 2), len(row_ends))
        row_ends[row:] = [centre + width / 2, *row_ends[row + 1 :]]
        placed.append((centre, row, middle, name))
    parts: list[str] = []
    for centre, row, middle, name in placed:
        y = bottom - 5 - row * 15
        if row:
            parts.append(straight(middle, y + 3, middle, bottom, "leader"))
        parts.append(text(name, centre, y, "middle", "name"))
    return joined(parts), len(row_ends)


def band_name_rows(width: float, spans: Sequence[tuple[str, float, float]]) -> int:
    """Return rows that `band_names` will need for (name, low share, high share) over a width."""
    frame = Frame(Scale(0, 1, 0, width), Scale(0, 1, 1, 0))
    return band_names(frame, [Band(name, low, high) for name, low, high in spans], 0)[1]


def _inside(frame: Frame, points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Runs of pixel points between the frame's top and bottom; a segment that leaves is cut where it leaves."""
    runs: list[list[tuple[float, float]]] = []
    run: list[tuple[float, float]] = []
    for index, (x, y) in enumerate(points):
        is_inside = frame.top <= y <= frame.bottom
        if index:
            x0, y0 = points[index - 1]
            was_inside = frame.top <= y0 <= frame.bottom
            if was_inside != is_inside:
                edge = frame.top if min(y, y0) < frame.top else frame.bottom
                crossing = (x0 + (x - x0) * (edge - y0) / (y - y0), edge)
                run.append(crossing)
                if was_inside:
                    runs.append(run)
                    run = []
        if is_inside:
            run.append((x, y))
    return [*runs, run] if run else runs


def path_of(points: Sequence[tuple[float, float]], closed: bool = False) -> str:
    """Return the `d` of a path through pixel points."""
    steps = [f"{'L' if index else 'M'}{number(x)} {number(y)}" for index, (x, y) in enumerate(points)]
    return "".join(steps) + ("Z" if closed else "")


def line(frame: Frame, xs: Values, ys: Values, class_: str, style: str | None = None) -> Markup:
    """Return a line through values; what lies above or below the frame is not drawn."""
    points = [(frame.x(float(x)), frame.y(float(y))) for x, y in zip(xs, ys, strict=True)]
    data = "".join(path_of(run) for run in _inside(frame, points))
    return element("path", d=data, class_=class_, style=style) if data else Markup()


def envelope(frame: Frame, xs: Values, lows: Values, highs: Values, class_: str) -> Markup:
    """Return the area between two lines, cut at the frame."""
    upper = [(frame.x(float(x)), max(frame.y(float(y)), frame.top)) for x, y in zip(xs, highs, strict=True)]
    lower = [(frame.x(float(x)), max(frame.y(float(y)), frame.top)) for x, y in zip(xs, lows, strict=True)]
    return element("path", d=path_of([*upper, *reversed(lower)], closed=True), class_=class_)


def point(x: float, y: float, tip: str, class_: str, style: str | None = None, radius: float = 4) -> Markup:
    """Return a round mark that says its value when pointed at."""
    return element("circle", cx=x, cy=y, r=radius, class_=class_, style=style, data_tip=tip)


def square(x: float, y: float, tip: str, size: float = 6) -> Markup:
    """Return a mark beside a `point`, for what is of the same kind and second to it."""
    half = size / 2
    return element("rect", x=x - half, y=y - half, width=size, height=size, class_="dot main", data_tip=tip)


def colour_of(index: int) -> str:
    """Return one of the eight colours of the page."""
    return f"var(--c{index % 8})"


def extremes(xs: np.ndarray, ys: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows that draw the same line: first, least, greatest and last of each pixel (M4, VLDB 2014)."""
    if len(xs) <= 4 * columns:
        return xs, ys
    column = np.minimum(((xs - xs[0]) / (xs[-1] - xs[0]) * columns).astype(np.int64), columns - 1)
    keep: set[int] = set()
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(xs)], strict=True):
        piece = ys[first:end]
        keep |= {int(first), int(first + piece.argmin()), int(first + piece.argmax()), int(end - 1)}
    rows = np.array(sorted(keep))
    return xs[rows], ys[rows]


def binned(xs: np.ndarray, ys: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return mean x, mean y, least and greatest y of consecutive rows in at most `bins` bins of nearly equal size."""
    starts = np.unique(np.linspace(0, len(xs), min(bins, len(xs)) + 1).astype(np.int64)[:-1])
    sizes = np.diff([*starts, len(xs)])
    return (
        np.add.reduceat(xs.astype(np.float64), starts) / sizes,
        np.add.reduceat(ys.astype(np.float64), starts) / sizes,
        np.minimum.reduceat(ys, starts),
        np.maximum.reduceat(ys, starts),
    )


def settled(tokens: np.ndarray, values: np.ndarray, end: float) -> np.ndarray:
    """Return the values behind the first tokens of a run of `end` tokens, for the upper end of an axis.

    The first losses fall from ln(vocabulary size): with them on the axis, all that follows is a flat line.
    """
    return values[tokens >= _GUESSED_SHARE * end]


def tokens_tip(low: float, high: float) -> str:
    """Return a stretch of tokens in words."""
    return f"{tokens_label(low)} to {tokens_label(high)} tokens"


def rounded_up(value: float) -> float:
    """Return the next round number, for the top of an axis."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * power >= value * (1 - 1e-9))
