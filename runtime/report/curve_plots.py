"""Curves of a run over its tokens: the same panels on the live page and on the page that `curves` draws.

The curves are not in the report: equal runs may validate or log their speed at different steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.report.document import document
from runtime.report.figures import figure
from runtime.report.markup import Markup
from runtime.report.norm_plots import LayerNorms, norm_maps
from runtime.report.panel import TOKENS, Extent, Panel, around, extremes, main_and_branches, numbers, settled
from runtime.report.recipe import counted, tokens_label

LOSS, BITS, SPEED, MFU, GRADIENT, RATE = (
    "train loss (nats a token)", "held-out text (bits per byte)", "tokens a second", "MFU (causal attention)",
    "gradient norm", "learning rate",
)  # fmt: skip
PANELS = {LOSS: "0.[000]", BITS: "0.[000]", SPEED: "0.[0]a", MFU: "0.[0]%", GRADIENT: "0.[00]", RATE: "0.[000000]"}
"""Panel to the format of its y axis."""
MOST_POINTS, LEAST_POINTS = 4_000, 64
"""Points of all lines of a panel, and of a line with a small share of them."""
CAPTION = (
    "Drag to zoom all panels; the values shown are thinned again, and every minimum and maximum stays. Pale lines are "
    "recorded values, strong lines are smoothed by the slider."
)


class Line(NamedTuple):
    """Values of one phase in one panel, in order of tokens; NaN where there is none."""

    panel: str
    name: str
    phase: str
    is_main: bool
    """Whether the phase is drawn as a part of the main line; each other phase is its own series."""
    tokens: np.ndarray
    values: np.ndarray


def page(title: str, lines: Sequence[Line], norms: Sequence[LayerNorms], notes: Sequence[str] = ()) -> str:
    """Return the whole page of the curves, with gradient norms by layer if there are any."""
    end = max((float(line.tokens[-1]) for line in lines if len(line.tokens)), default=1.0)
    lead = f"{counted(len({line.phase for line in lines}), 'phase')}, up to {tokens_label(end)} tokens."
    return document(title, lead, curves(lines, end=1.01 * end), *norm_maps(norms), notes=notes)


def curves(lines: Sequence[Line], *, end: float, is_live: bool = False) -> Markup:
    """Return the figure of all panels that have a line; a live one gets its values later (`thinned`)."""
    runs = main_and_branches(list(dict.fromkeys(line.phase for line in lines if not line.is_main)))
    found = thinned(lines, None, None)
    panels = []
    for title, y_format in PANELS.items():
        shown = [line for line in lines if line.panel == title]
        if not shown:
            continue
        values = found.get(title, {"low": 0.0, "high": 1.0, "lines": {}})
        y, x = Extent(values["low"], values["high"]), Extent(0, end, name=TOKENS)
        panel = Panel(title, x, y, height=240, x_title="tokens", y_format=y_format, value_format="0,0.[000000]")
        for line in shown:
            drawn = values["lines"].get(line.name, {"x": [], "y": []})
            run = next(iter(runs.values())) if line.is_main else runs[line.phase]
            panel.line(run, drawn["x"], drawn["y"], name=line.name, smooth=title in (LOSS, GRADIENT))
        panels.append(panel)
    return figure(panels, CAPTION, legend=runs, columns=2, has_scale=not is_live, is_live=is_live)


def thinned(lines: Sequence[Line], low: float | None, high: float | None) -> dict[str, Any]:
    """Return for each panel the points of its lines between two numbers of tokens, and the range of its y axis.

    A panel has about `MOST_POINTS` points at most, the minimum and maximum of the values that they replace among them.
    """
    return {
        title: found
        for title in PANELS
        if (found := _panel([line for line in lines if line.panel == title and len(line.tokens)], low, high))
    }


def _panel(lines: Sequence[Line], low: float | None, high: float | None) -> dict[str, Any]:
    pieces = {line.name: _between(line, low, high) for line in lines}
    total = sum(len(tokens) for tokens, _ in pieces.values())
    drawn: dict[str, Mapping[str, list[float]]] = {}
    every: list[np.ndarray] = []
    end = max((float(tokens[-1]) for tokens, _ in pieces.values() if len(tokens)), default=0.0)
    for name, (tokens, values) in pieces.items():
        xs, ys = extremes(tokens, values, max(LEAST_POINTS, MOST_POINTS * len(tokens) // max(total, 1)))
        if len(xs):
            drawn[name] = {"x": numbers(xs), "y": numbers(ys)}
            every.append(ys if low else settled(xs, ys, end))
    if not drawn:
        return {}
    y = around(np.concatenate(every))
    return {"lines": drawn, "low": y.low, "high": y.high}


def _between(line: Line, low: float | None, high: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows between `low` and `high`, with one more row on either side."""
    first = 0 if low is None else max(int(np.searchsorted(line.tokens, low)) - 1, 0)
    last = None if high is None else int(np.searchsorted(line.tokens, high, side="right")) + 1
    return line.tokens[first:last], line.values[first:last]
