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
from runtime.report.markup import NONE, Markup, table
from runtime.report.panel import TOKENS, Extent, Panel, around, main_and_branches, settled
from runtime.report.recipe import counted, tokens_label

_MARKERS = ("circle", "square", "triangle", "diamond", "hex", "star", "inverted_triangle", "plus", "cross")
"""Marks of the sets of weights, the weights as last trained first."""
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
    """Return the whole page; `curves` in the order shown, at least one with a row."""
    measured = [curve for curve in curves if len(curve.step)]
    weights = list(dict.fromkeys([HOT, *(which for curve in measured for which in curve.means)]))
    num_measured = sum(len(curve.step) for curve in measured)
    lead = f"{counted(num_measured, 'measurement')} of held-out text while {counted(len(measured), 'phase')} trained."
    end = max(curve.consumed_tokens for curve in curves)
    return document(title, lead, _drawn(measured, weights, end), _table(measured, weights), notes=notes)


def _drawn(measured: Sequence[ValidationCurve], weights: Sequence[str], end: int) -> Markup:
    """Return mean bits per byte of every phase over the tokens of all, branches beside the main line."""
    points = np.concatenate([[curve.tokens, means] for curve in measured for means in curve.means.values()], axis=1)
    tokens, means = points[:, np.isfinite(points[1])]
    ends = around(np.concatenate([settled(tokens, means, end), [means.min()]]))
    runs = main_and_branches([curve.phase for curve in measured if not curve.is_main])
    panel = Panel(
        "bits per byte of held-out text", Extent(0, 1.01 * end, name=TOKENS), ends, height=360, x_title="tokens"
    )
    marker_of = {which: _MARKERS[index % len(_MARKERS)] for index, which in enumerate(weights)}
    for curve in measured:
        run = runs[curve.phase] if curve.phase in runs else next(iter(runs.values()))
        for which, values in curve.means.items():
            known = np.isfinite(values)
            name = f"{curve.phase}, {_label(which)}"
            panel.line(run, curve.tokens[known], values[known], name=name)
            tips = [
                f"{name} after step {step:,}: {value:.4f}"
                for step, value in zip(curve.step[known], values[known], strict=True)
            ]
            panel.points(
                run, curve.tokens[known], values[known], tips, marker=marker_of[which], size=6, is_open=which == HOT
            )
    above = tokens[means > ends.high]
    cut = f" Values above the axis (the last at {tokens_label(above.max())} tokens) are off it." if len(above) else ""
    marks = ", ".join(f"{marker.replace('_', ' ')}: {_label(which)}" for which, marker in marker_of.items())
    return figure([panel], f"{_CAPTION} Marks: {marks}.{cut}", legend=runs, has_scale=True)


def _table(measured: Sequence[ValidationCurve], weights: Sequence[str]) -> Markup:
    headings = ["phase", "#measured", "#sources", "#last, after step", "#tokens", *(f"#{_label(w)}" for w in weights)]
    rows = []
    for curve in measured:
        last = {which: float(means[-1]) for which, means in curve.means.items() if np.isfinite(means[-1])}
        values = [f"{last[which]:.4f}" if which in last else NONE for which in weights]
        figures = (f"{len(curve.step):,}", f"{curve.num_sources}", f"{curve.step[-1]:,}", f"{curve.tokens[-1]:,.0f}")
        rows.append([curve.phase, *figures, *values])
    return table(
        headings, rows, "Bits per byte of held-out text where each phase was measured last, mean of its sources"
    )


def _label(which: str) -> str:
    return "weights" if which == HOT else which
