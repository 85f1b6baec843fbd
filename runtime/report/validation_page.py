"""Validation as a page: bits per byte of held-out text over tokens, as the phases of a run were measured in training.

This page is made on request and is no part of the report, since how often a phase validates may differ between equal
runs.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.optim.ema import HOT
from runtime.report.document import document
from runtime.report.markup import Markup, element, joined
from runtime.report.page import figure
from runtime.report.plots import (
    TEXT_SIZE,
    Band,
    Frame,
    band_name_rows,
    band_names,
    bands,
    drawing,
    line,
    point,
    settled,
    text,
    token_axis,
    tokens_tip,
    y_axis,
)
from runtime.report.run_plots import margins
from runtime.report.scales import Scale, counted, padded, text_width, tokens_label
from runtime.report.tables import NONE, Cell, Column, table

_KEY_WIDTH = 48
"""Pixels, in which the strokes of nine averages repeat; the style sheet says the same."""


_NAME_OFFSET = 10.0
"""Pixels between a point and its name."""
_NAME_GAP = 13.0
"""Pixels from one line of names to the next."""
_HALO = "paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round"
"""Around a name that stands on lines."""


@dataclasses.dataclass(frozen=True, eq=False)
class ValidationCurve:
    """Validations of one phase so far, one row each."""

    phase: str
    is_main: bool
    start_tokens: int
    """Tokens consumed before its first training step."""
    consumed_tokens: int
    """Tokens consumed by now."""
    num_sources: int
    """Sources that each mean is over."""
    step: np.ndarray
    tokens: np.ndarray
    """Consumed by the state that was measured."""
    means: Mapping[str, np.ndarray]
    """Set of weights, `HOT` first, to the mean over the sources; NaN where the set was not measured."""


def page(title: str, curves: Sequence[ValidationCurve], notes: Sequence[str] = ()) -> str:
    """Return the whole page; `curves` in the order shown, at least one with a row; `notes` are sentences."""
    measured = [curve for curve in curves if len(curve.step)]
    num_measured = sum(len(curve.step) for curve in measured)
    summary_text = (
        f"{counted(num_measured, 'measurement')} of held-out text while {counted(len(measured), 'phase')} trained."
    )
    shown = element(
        "main",
        element("header", element("h1", title), element("p", summary_text, class_="lead")),
        figure(functools.partial(validation, curves), _caption(curves)),
        element("ul", *_keys(measured), class_="keys lines"),
        validation_table(measured),
        *(element("p", f"{note}.") for note in notes),
    )
    return document(title, shown)


def validation(curves: Sequence[ValidationCurve], width: float) -> Markup:
    """Return mean bits per byte of every phase over the tokens of all, branches beside the main line."""
    left, right = margins(width)
    end = max(curve.consumed_tokens for curve in curves)
    measured = [curve for curve in curves if len(curve.step)]
    low, high = _ends(curves)
    styles = _styles(measured)
    phases = [_band(curve) for curve in curves if curve.is_main]
    spans = [(band.name, band.low / end, band.high / end) for band in phases]
    top = 15 * band_name_rows(width - left - right, spans) + 30
    frame = Frame(Scale(0, end, left, width - right), Scale(low, high, top + (300 if width > 600 else 240), top))
    parts: list[str] = [
        bands(frame, phases, top - 18),
        band_names(frame, phases, top - 18)[0],
        y_axis(frame, "bits per byte of held-out text", 7),
    ]
    for curve in sorted(measured, key=lambda curve: curve.is_main):
        kind = "main" if curve.is_main else "branch"
        for which, means in curve.means.items():
            known = np.isfinite(means)
            parts.append(line(frame, curve.tokens[known], means[known], f"line {kind}", styles[which]))
            if known.any() and frame.y.contains(last := float(means[known][-1])):
                tokens, step = float(curve.tokens[known][-1]), int(curve.step[known][-1])
                tip = f"{curve.phase}, {which} weights after step {step:,}: {last:.4f}"
                parts.append(point(frame.x(tokens), frame.y(last), tip, f"dot {kind}", radius=3))
    parts.append(_branch_names(frame, measured))
    parts.append(token_axis(frame))
    return drawing(width, frame.bottom + 38, f"Bits per byte of held-out text over {tokens_label(end)} tokens", *parts)


def stacked(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places from `low` to `high`, at least `gap` apart, nearest to those wanted, which are in order.

    `high - low` has room for them all.
    """
    # Less a gap for each earlier place, places need only be in order: neighbours out of order share their mean.
    blocks: list[list[float]] = []
    for index, place in enumerate(wanted):
        blocks.append([place - index * gap])
        while len(blocks) > 1 and sum(blocks[-2]) / len(blocks[-2]) > sum(blocks[-1]) / len(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    last_start = high - (len(wanted) - 1) * gap
    starts = [min(max(sum(block) / len(block), low), last_start) for block in blocks for _ in block]
    return [start + index * gap for index, start in enumerate(starts)]


def _branch_names(frame: Frame, measured: Sequence[ValidationCurve]) -> Markup:
    """Return the name of each branch beside its last point on the picture, where the frame has room for it."""
    places: list[_Name] = []
    for curve in measured:
        if curve.is_main or (last := _last_on(frame.y, curve)) is None:
            continue
        x, y = frame.x(last[0]), frame.y(last[1])
        width = text_width(curve.phase, TEXT_SIZE)
        if x + _NAME_OFFSET + width <= frame.right:
            places.append(_Name(curve.phase, x, y, x + _NAME_OFFSET, x + _NAME_OFFSET + width))
        elif x - _NAME_OFFSET - width >= frame.left:
            places.append(_Name(curve.phase, x, y, x - _NAME_OFFSET - width, x - _NAME_OFFSET))
    parts: list[str] = []
    for column in _columns(places):
        names = sorted(column, key=lambda name: name.y)[: int((frame.bottom - frame.top) / _NAME_GAP)]
        half = _NAME_GAP / 2
        middles = stacked([name.y for name in names], _NAME_GAP, frame.top + half, frame.bottom - half)
        for name, middle in zip(names, middles, strict=True):
            is_right = name.left > name.x
            edge = name.left - 2 if is_right else name.right + 2
            if abs(middle - name.y) > half:
                ends = {"x1": name.x, "y1": name.y, "x2": edge, "y2": middle}
                parts.append(element("line", class_="leader", style="stroke:var(--ink3)", **ends))
            anchor, at = ("start", name.left) if is_right else ("end", name.right)
            parts.append(text(name.phase, at, middle + 3.8, anchor, "name", style=_HALO))
    return joined(parts)


@dataclasses.dataclass(frozen=True)
class _Name:
    """A phase whose last point is at `x` and `y`, and where its name begins and ends."""

    phase: str
    x: float
    y: float
    left: float
    right: float


def _columns(names: Sequence[_Name]) -> list[list[_Name]]:
    """Return names over each other: two of different columns have no x in common."""
    columns: list[list[_Name]] = []
    for name in sorted(names, key=lambda name: name.left):
        if columns and name.left < max(other.right for other in columns[-1]) + _NAME_OFFSET:
            columns[-1].append(name)
        else:
            columns.append([name])
    return columns


def _last_on(axis: Scale, curve: ValidationCurve) -> tuple[float, float] | None:
    """Return tokens and mean of the last measurement that is on the axis, of the first set of weights that has one."""
    for means in curve.means.values():
        for tokens, value in zip(curve.tokens[::-1], means[::-1], strict=True):
            if np.isfinite(value) and axis.contains(float(value)):
                return float(tokens), float(value)
    return None


def validation_table(measured: Sequence[ValidationCurve]) -> Markup:
    """Return the last measurement of each phase."""
    averages = _averages(measured)
    columns = [
        Column("phase"), Column("measured", "number"), Column("sources", "number"),
        Column("last, after step", "number"), Column("tokens", "number"),
        *(Column(which, "number") for which in (HOT, *averages)),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for curve in measured:
        last = {which: float(means[-1]) for which, means in curve.means.items() if np.isfinite(means[-1])}
        values = [
            Cell(f"{last[which]:.4f}", is_best=len(last) > 1 and last[which] == min(last.values()))
            if which in last
            else NONE
            for which in (HOT, *averages)
        ]
        figures = (f"{len(curve.step):,}", f"{curve.num_sources}", f"{curve.step[-1]:,}", f"{curve.tokens[-1]:,.0f}")
        rows.append([curve.phase, *figures, *values])
    is_marked = any(isinstance(cell, Cell) and cell.is_best for row in rows for cell in row)
    better = " Bold: the best weights of a phase." if is_marked else ""
    summary_text = "Bits per byte of held-out text where each phase was measured last, mean of its sources."
    return table(columns, rows, f"{summary_text}{better}")


def _band(curve: ValidationCurve) -> Band:
    tip = f"{curve.phase}: {tokens_tip(curve.start_tokens, curve.consumed_tokens)}"
    return Band(curve.phase, curve.start_tokens, curve.consumed_tokens, tip)


def _averages(measured: Sequence[ValidationCurve]) -> list[str]:
    """Return names of all sets of weights but the ones as last trained, those of earlier phases first."""
    return list(dict.fromkeys(which for curve in measured for which in curve.means if which != HOT))


def _styles(measured: Sequence[ValidationCurve]) -> dict[str, str | None]:
    """Return the dash pattern of each set of weights; `HOT` is solid and no two averages are alike."""
    styles = {which: f"stroke-dasharray:{_dash(index)}" for index, which in enumerate(_averages(measured))}
    return {HOT: None, **styles}


def _dash(index: int) -> str:
    """Return the dash pattern of an average by its place on the page."""
    return ("5 3", "1.5 3")[index] if index < 2 else "9 3" + " 1.5 3" * (index - 1)


def _measurements(curves: Sequence[ValidationCurve]) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and mean, of all phases and sets of weights."""
    found = [(curve.tokens, means) for curve in curves for means in curve.means.values()]
    tokens, means = (np.concatenate(column) for column in zip(*found, strict=True))
    known = np.isfinite(means)
    return tokens[known], means[known]


def _ends(curves: Sequence[ValidationCurve]) -> tuple[float, float]:
    """Return the ends of the axis: the least and the greatest value behind the first tokens of the run."""
    tokens, means = _measurements(curves)
    behind = settled(tokens, means, max(curve.consumed_tokens for curve in curves))
    return padded([means.min(), (behind if len(behind) else means).max()])


def _caption(curves: Sequence[ValidationCurve]) -> str:
    _, high = _ends(curves)
    tokens, means = _measurements(curves)
    above = tokens[means > high]
    cut = f" Values above the axis (the last at {tokens_label(above.max())} tokens) are cut off." if len(above) else ""
    axis = Scale(*_ends(curves), 0, 1)
    gone = [curve.phase for curve in curves if len(curve.step) and _last_on(axis, curve) is None]
    cut += f" Not on the picture, since all of it is above the axis: {', '.join(gone)}." if gone else ""
    is_branched = any(len(curve.step) and not curve.is_main for curve in curves)
    named = ", each named at its last dot where there is room" if is_branched else ""
    return (
        "Mean over the held-out text of the sources of each phase, every source counting the same; the axis does not "
        "begin at 0. Phases with other sources are measured on other text, so a jump between two of them may come of "
        f"the text alone. Blue is the main line, orange the branches{named}; a dot is the last measurement of a phase. "
        f"Shaded: every second phase.{cut}"
    )


def _keys(measured: Sequence[ValidationCurve]) -> list[Markup]:
    """Return a key for each set of weights."""
    keys = []
    for which, style in _styles(measured).items():
        stroke = element("path", d=f"M1 7L{_KEY_WIDTH - 1} 7", class_="line main", style=style)
        keys.append(element("li", drawing(_KEY_WIDTH, 14, "", stroke), f"{which} weights"))
    return keys
