"""Validation as a page: bits per byte of held-out text over tokens, as the phases of a run were measured in training.

This page is made on request and is no part of the report, since how often a phase validates may differ between equal
runs.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.optim.ema import HOT
from runtime.report.document import document
from runtime.report.figures import figure
from runtime.report.labels import counted, tokens_label
from runtime.report.markup import Markup, element
from runtime.report.panel import TOKENS, Extent, Panel, Series, around, main_and_branches, settled
from runtime.report.tables import NONE, Cell, Column, table

_MAIN = "main line"
_MARKERS = ("circle", "square", "triangle", "diamond", "hex", "star", "inverted_triangle", "plus", "cross")
"""Of the sets of weights, the weights as last trained first."""
_CAPTION = (
    "Mean over the held-out text of the sources of each phase, every source counting the same; the axis does not "
    "begin at 0. Phases with other sources are measured on other text, so a jump between two of them may come of the "
    "text alone."
)


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
    summary = (
        f"{counted(num_measured, 'measurement')} of held-out text while {counted(len(measured), 'phase')} trained."
    )
    shown = element(
        "main",
        element("header", element("h1", title), element("p", summary, class_="lead")),
        validation(curves),
        validation_table(measured),
        *(element("p", f"{note}.") for note in notes),
    )
    return document(title, shown)


def validation(curves: Sequence[ValidationCurve]) -> Markup:
    """Return mean bits per byte of every phase over the tokens of all, branches beside the main line."""
    end = max(curve.consumed_tokens for curve in curves)
    measured = [curve for curve in curves if len(curve.step)]
    tokens, means = _measurements(measured)
    ends = around(np.concatenate([settled(tokens, means, end), [means.min()]]))
    runs = main_and_branches([curve.phase for curve in measured if not curve.is_main])
    weights = [HOT, *_averages(measured)]
    x = Extent(0, 1.01 * end, name=TOKENS)
    panel = Panel("bits per byte of held-out text", x, ends, height=360, x_title="tokens")
    for curve in measured:
        _add_curve(panel, curve, runs[_MAIN if curve.is_main else curve.phase], weights)
    above = tokens[means > ends.high]
    cut = f" Values above the axis (the last at {tokens_label(above.max())} tokens) are off it." if len(above) else ""
    return figure([panel], f"{_CAPTION} {_marks(weights)}{cut}", legend=runs, has_scale=True)


def validation_table(measured: Sequence[ValidationCurve]) -> Markup:
    """Return the last measurement of each phase."""
    averages = _averages(measured)
    columns = [
        Column("phase"), Column("measured", "number"), Column("sources", "number"),
        Column("last, after step", "number"), Column("tokens", "number"),
        *(Column(_label(which), "number") for which in (HOT, *averages)),
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


def _averages(measured: Sequence[ValidationCurve]) -> list[str]:
    """Return names of all sets of weights but the ones as last trained, those of earlier phases first."""
    return list(dict.fromkeys(which for curve in measured for which in curve.means if which != HOT))


def _measurements(curves: Sequence[ValidationCurve]) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and mean, of all phases and sets of weights."""
    found = [(curve.tokens, means) for curve in curves for means in curve.means.values()]
    tokens, means = (np.concatenate(column) for column in zip(*found, strict=True))
    known = np.isfinite(means)
    return tokens[known], means[known]


def _add_curve(panel: Panel, curve: ValidationCurve, run: Series, weights: Sequence[str]) -> None:
    for which, means in curve.means.items():
        known = np.isfinite(means)
        name = f"{curve.phase}, {_label(which)}"
        panel.line(run, curve.tokens[known], means[known], name=name)
        tips = [
            f"{name} after step {step:,}: {value:.4f}"
            for step, value in zip(curve.step[known], means[known], strict=True)
        ]
        marker = _MARKERS[weights.index(which) % len(_MARKERS)]
        panel.points(run, curve.tokens[known], means[known], tips, marker=marker, size=6, is_open=which == HOT)


def _label(which: str) -> str:
    return "weights" if which == HOT else which


def _marks(weights: Sequence[str]) -> str:
    """Return which mark stands for which weights."""
    marks = [
        f"{_MARKERS[index % len(_MARKERS)].replace('_', ' ')}: {_label(which)}" for index, which in enumerate(weights)
    ]
    return f"Marks: {', '.join(marks)}."
