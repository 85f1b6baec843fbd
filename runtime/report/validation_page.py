"""Validation as a page: bits per byte of held-out text over tokens, as the phases of a run were measured in training.

A page of its own, made when somebody asks: how often a phase measures is no part of what it is, and what it finds is
in no output. So the report, which is the same for equal runs, cannot know it.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.optim.ema import HOT
from runtime.report.document import document
from runtime.report.markup import Markup, element
from runtime.report.page import figure
from runtime.report.plots import (
    Band,
    Frame,
    band_name_rows,
    band_names,
    bands,
    drawing,
    line,
    point,
    token_axis,
    tokens_tip,
    y_axis,
)
from runtime.report.run_plots import margins
from runtime.report.scales import Scale, counted, padded, tokens_label
from runtime.report.tables import NONE, Cell, Column, table

_HIDDEN_SHARE = 0.03
"""As for the loss: the first measurements are those of a model that guesses."""
_DASHES = ("5 3", "1.5 3", "9 3 1.5 3")
"""Of the averages of a phase, in their order; the weights as last trained have a line without gaps."""


@dataclasses.dataclass(frozen=True, eq=False)
class ValidationCurve:
    """One phase and what it has measured so far, a row a measurement; no row for one that measures nothing."""

    phase: str
    is_main: bool
    start_tokens: int
    """Tokens consumed before its first update."""
    consumed_tokens: int
    """By now."""
    num_sources: int
    """That each mean is over."""
    step: np.ndarray
    tokens: np.ndarray
    """Consumed by the state that was measured."""
    means: Mapping[str, np.ndarray]
    """By set of weights, `HOT` first: mean over the sources; not a number where that set was not measured."""


def page(title: str, curves: Sequence[ValidationCurve], notes: Sequence[str] = ()) -> str:
    """The whole page; `curves` in the order in which they are shown, at least one with a row; `notes` are sentences."""
    measured = [curve for curve in curves if len(curve.step)]
    num_measured = sum(len(curve.step) for curve in measured)
    said = f"{counted(num_measured, 'measurement')} of held-out text while {counted(len(measured), 'phase')} trained."
    shown = element(
        "main",
        element("header", element("h1", title), element("p", said, class_="lead")),
        figure(functools.partial(validation, curves), _caption(curves)),
        element("ul", *_keys(measured), class_="keys"),
        validation_table(measured),
        *(element("p", f"{note}.") for note in notes),
    )
    return document(title, shown)


def validation(curves: Sequence[ValidationCurve], width: float) -> Markup:
    """Mean bits per byte of every phase over the tokens of all, branches beside the main line."""
    left, right = margins(width)
    end = max(curve.consumed_tokens for curve in curves)
    measured = [curve for curve in curves if len(curve.step)]
    low, high = _ends(curves)
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
        for (which, means), dash in zip(curve.means.items(), _dashes(curve), strict=False):
            known = np.isfinite(means)
            style = None if dash is None else f"stroke-dasharray:{dash}"
            parts.append(line(frame, curve.tokens[known], means[known], f"line {kind}", style))
            if known.any() and frame.y.contains(last := float(means[known][-1])):
                tokens, step = float(curve.tokens[known][-1]), int(curve.step[known][-1])
                tip = f"{curve.phase}, {which} weights after step {step:,}: {last:.4f}"
                parts.append(point(frame.x(tokens), frame.y(last), tip, f"dot {kind}", radius=3))
    parts.append(token_axis(frame))
    return drawing(width, frame.bottom + 38, f"Bits per byte of held-out text over {tokens_label(end)} tokens", *parts)


def validation_table(measured: Sequence[ValidationCurve]) -> Markup:
    """The last measurement of each phase."""
    averages = list(dict.fromkeys(which for curve in measured for which in curve.means if which != HOT))
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
    return table(
        columns, rows, "Bits per byte of held-out text where each phase was measured last, mean of its sources"
    )


def _band(curve: ValidationCurve) -> Band:
    tip = f"{curve.phase}: {tokens_tip(curve.start_tokens, curve.consumed_tokens)}"
    return Band(curve.phase, curve.start_tokens, curve.consumed_tokens, tip)


def _dashes(curve: ValidationCurve) -> list[str | None]:
    return [None, *(_DASHES[index % len(_DASHES)] for index in range(len(curve.means) - 1))]


def _measurements(curves: Sequence[ValidationCurve]) -> list[tuple[float, float]]:
    """Tokens and mean, of all sets of weights."""
    return [
        (float(tokens), float(value))
        for curve in curves
        for means in curve.means.values()
        for tokens, value in zip(curve.tokens, means, strict=True)
        if np.isfinite(value)
    ]


def _ends(curves: Sequence[ValidationCurve]) -> tuple[float, float]:
    """Of the axis: around all that was measured behind the first tokens of the run, or around all where that is all."""
    found = _measurements(curves)
    end = max(curve.consumed_tokens for curve in curves)
    return padded([mean for tokens, mean in found if tokens >= _HIDDEN_SHARE * end] or [mean for _, mean in found])


def _caption(curves: Sequence[ValidationCurve]) -> str:
    _, high = _ends(curves)
    above = [tokens for tokens, mean in _measurements(curves) if mean > high]
    cut = f" Values above the axis (the last at {tokens_label(max(above))} tokens) are cut off." if above else ""
    return (
        "Mean over the held-out text of the sources of each phase, every source counting the same; the axis does not "
        "begin at 0. Phases with other sources are measured on other text, so a jump between two of them may come of "
        "the text alone. Blue is the main line, orange the branches; a dot is the last measurement of a phase. "
        f"Shaded: every second phase.{cut}"
    )


def _keys(measured: Sequence[ValidationCurve]) -> list[Markup]:
    """A line for each set of weights, by the place that it has in the phases that keep it."""
    names: dict[str | None, dict[str, None]] = {}
    for curve in measured:
        for which, dash in zip(curve.means, _dashes(curve), strict=True):
            names.setdefault(dash, {})[which] = None
    keys = []
    for dash, found in names.items():
        style = None if dash is None else f"stroke-dasharray:{dash}"
        swatch = drawing(14, 14, "", element("path", d="M1 7L13 7", class_="line main", style=style))
        keys.append(element("li", swatch, f"{', '.join(found)} weights"))
    return keys
