"""Figures of a ladder: the loss of each rung, as measured and as predicted, and IsoFLOP curves.

A law is the result of the step `fit_scaling_law`.
"""

from typing import Any

from markupsafe import Markup

from runtime.optim.ema import HOT
from runtime.report.figure import figure
from runtime.report.panel import Panel, around, series_of
from runtime.report.recipe import tokens_label
from runtime.report.score_curves import ScorePoint, measures

MEASURED, PREDICTED, HELD_OUT = "measured", "predicted", "predicted, held out"


def rungs(law: Any) -> Markup:
    """Return a panel for each size, with its lengths."""
    points = []
    for rung in sorted(law.rungs, key=lambda rung: (rung.num_parameters, rung.num_tokens)):
        measure = f"{tokens_label(rung.num_parameters)} parameters (bits per byte)"
        place = rung.name, HOT, 0, rung.num_tokens, measure
        predicted, series = rung.predicted, HELD_OUT if rung.is_held_out else PREDICTED
        points.append(ScorePoint(*place, rung.loss, series=MEASURED))
        points.append(ScorePoint(*place, predicted.value, interval=(predicted.low, predicted.high), series=series))
    caption = f"Bars: {law.confidence:.0%} interval of one run's loss. Axes differ from panel to panel."
    return measures(points, end=max(rung.num_tokens for rung in law.rungs), caption=caption)


def isoflop(law: Any) -> Markup:
    """Return the losses of several sizes for each budget, with the sizes at the minima; nothing without curves."""
    if not law.isoflop_curves:
        return Markup()
    series = series_of([f"{curve.flops:.2e} FLOPs" for curve in law.isoflop_curves])
    x = around([size for curve in law.isoflop_curves for size in curve.num_parameters], 0.1)
    x.name = "parameters"
    y = around([loss for curve in law.isoflop_curves for loss in curve.losses], 0.1)
    panel = Panel("loss at equal FLOPs (bits per byte)", x, y, x_format="0.[00]a", y_format="0.[000]")
    for curve, one in zip(law.isoflop_curves, series.values(), strict=True):
        panel.line(one, curve.num_parameters, curve.losses)
        if curve.optimum is not None:
            tip = f"{one.name}: least at {tokens_label(curve.optimum)} parameters"
            marks = [(curve.optimum, min(curve.losses), tip)]
            panel.draw(panel.plot.scatter, one, ("x", "y", "tip"), marks, size=9, fill_color=one.colour)
    return figure([panel], "Marks: the size at the minimum of a parabola through a budget's sizes.", legend=series)
