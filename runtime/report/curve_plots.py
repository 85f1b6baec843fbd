"""Curves over the tokens of a run: the panels of the live page, of the page that `curves` draws, and of the report."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh.models import Range1d
from markupsafe import Markup

from runtime.report.figure import figure
from runtime.report.html import document
from runtime.report.norm_plots import LayerNorms, norm_maps
from runtime.report.panel import (
    MAIN_LINE,
    Panel,
    Series,
    around,
    extremes,
    main_and_branches,
    numbers,
    settled,
    token_range,
)
from runtime.report.recipe import tokens_label

LOSS, SOURCE_LOSS, BITS, ANSWERS, SPEED, MFU, GRADIENT, RATE, BATCH = (
    "train loss (nats a token)", "train loss by source (nats a token)", "held-out text (bits per byte)",
    "right answers of tasks (bits per byte)", "tokens a second", "MFU (causal attention)", "gradient norm",
    "learning rate", "batch size (sequences a step)",
)  # fmt: skip
PANELS = {
    LOSS: "0.[000]", SOURCE_LOSS: "0.[000]", BITS: "0.[000]", ANSWERS: "0.[000]", SPEED: "0.[0]a", MFU: "0.[0]%",
    GRADIENT: "0.[00]", RATE: "0.[000000]", BATCH: "0,0",
}  # fmt: skip
"""Panel to the format of its y axis."""
_SMOOTHED = (LOSS, SOURCE_LOSS, GRADIENT)
_SETTINGS = (RATE, BATCH)
"""Panels whose axis holds 0 and the first values, which elsewhere fall from where training begins."""
MOST_POINTS, MOST_POINTS_IN_A_FILE = 4_000, 16_000
"""Points of all lines of a panel; a page of 25 sources and 20 branches stays below 5 MB."""
LINE_POINTS = (64, 5_000)
"""Points of a line, at least and at most."""
CAPTION = "Drag to zoom: the panels follow. Pale: recorded; strong: smoothed by the slider. Dotted: EMA weights."
_THINNED = " The page thins the values again at each zoom, and keeps every minimum and maximum."


class Line(NamedTuple):
    """Values of one phase in one panel, in order of tokens; NaN where there is none."""

    panel: str
    name: str
    """The panel has no other line of this name."""
    series: str
    """The entry of the legend: `MAIN_LINE`, a branch, or a source."""
    tokens: np.ndarray
    values: np.ndarray
    is_dotted: bool = False
    """Whether it is of EMA weights, beside those that are trained."""
    phase: str = ""
    """The phase whose rows a click on the line shows; empty on pages that show none."""


def page(title: str, lines: Sequence[Line], norms: Sequence[LayerNorms], notes: Sequence[str] = ()) -> str:
    """Return the whole page of the curves, with gradient norms by layer if there are any."""
    end = max((float(line.tokens[-1]) for line in lines if len(line.tokens)), default=1.0)
    lead = f"Up to {tokens_label(end)} tokens."
    return document(title, lead, curves(lines, end=1.01 * end), norm_maps(norms), notes=notes)


def curves(
    lines: Sequence[Line],
    *,
    end: float,
    is_live: bool = False,
    most: int = MOST_POINTS_IN_A_FILE,
    branches: Sequence[str] = (),
) -> Markup:
    """Return the figure of all panels that have a line; a live one gets its values later (`thinned`).

    `branches`, also those without a line, have the colours that a report gives them.
    """
    names = [line.series for line in lines]
    every = main_and_branches([name for name in dict.fromkeys([*branches, *names]) if name != MAIN_LINE])
    runs = {name: series for name, series in every.items() if name in names}
    panels = line_panels(lines, runs, token_range(end), most)
    caption = CAPTION + (_THINNED if is_live else "")
    return figure(panels, caption, legend=runs, columns=2, is_live=is_live)


def line_panels(
    lines: Sequence[Line], legend: Mapping[str, Series], x: Range1d, most: int = MOST_POINTS_IN_A_FILE
) -> list[Panel]:
    """Return the panels that have a line, in the order of `PANELS`, with at most `most` points each."""
    found = thinned(lines, None, None, most)
    panels = []
    for title, y_format in PANELS.items():
        shown = [line for line in lines if line.panel == title]
        if not shown:
            continue
        values = found.get(title, {"low": 0.0, "high": 1.0, "lines": {}})
        value_format = "0.000e+0" if title == RATE else "0,0.[000000]"
        y = Range1d(values["low"], values["high"])
        panel = Panel(title, x, y, height=250, y_format=y_format, value_format=value_format)
        for line in shown:
            drawn = values["lines"].get(line.name, {"x": [], "y": []})
            series = dataclasses.replace(legend[line.series], dash="dotted") if line.is_dotted else legend[line.series]
            smooth = title in _SMOOTHED
            panel.line(series, drawn["x"], drawn["y"], name=line.name, smooth=smooth, phase=line.phase)
        panels.append(panel)
    return panels


def thinned(
    lines: Sequence[Line], low: float | None, high: float | None, most: int = MOST_POINTS
) -> dict[str, dict[str, Any]]:
    """Return for each panel the points of its lines between two numbers of tokens, and the range of its y axis.

    At most `most` points of a panel are returned, the extremes of what they stand for among them.
    """
    return {
        title: found
        for title in PANELS
        if (found := _panel([line for line in lines if line.panel == title and len(line.tokens)], low, high, most))
    }


def _panel(lines: Sequence[Line], low: float | None, high: float | None, most: int) -> dict[str, Any]:
    pieces = {line.name: _between(line, low, high) for line in lines}
    total = sum(len(tokens) for tokens, _ in pieces.values())
    drawn: dict[str, Mapping[str, list[float]]] = {}
    every: list[np.ndarray] = []
    end = max((float(tokens[-1]) for tokens, _ in pieces.values() if len(tokens)), default=0.0)
    for name, (tokens, values) in pieces.items():
        share = most * len(tokens) // max(total, 1)
        xs, ys = extremes(tokens, values, min(max(share, LINE_POINTS[0]), LINE_POINTS[1]))
        if len(xs):
            drawn[name] = {"x": numbers(xs), "y": numbers(ys)}
            is_setting = lines[0].panel in _SETTINGS
            every.append(np.append(ys, 0.0) if is_setting else ys if low else settled(xs, ys, end))
    if not drawn:
        return {}
    y = around(np.concatenate(every))
    return {"lines": drawn, "low": y.start, "high": y.end}


def _between(line: Line, low: float | None, high: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows between `low` and `high`, with one more row on either side."""
    first = 0 if low is None else max(int(np.searchsorted(line.tokens, low)) - 1, 0)
    last = None if high is None else int(np.searchsorted(line.tokens, high, side="right")) + 1
    return line.tokens[first:last], line.values[first:last]
