"""Figures of gradient norms: which layers had gradients far from their usual size, and when; a panel a phase."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from bokeh.models import Range1d
from jaxtyping import Float64, Int64
from markupsafe import Markup

from runtime.report.figure import figure
from runtime.report.html import macro
from runtime.report.panel import Panel
from runtime.report.recipe import counted
from runtime.report.theme import DIVERGING
from runtime.tracking.curves import NORM_BY_PART, Curves
from runtime.tracking.parts import GRADIENT, layer_of

MOST_COLUMNS = 200
"""Columns of a heat map; each has the ratio furthest from 1 among its training steps."""
_MOST_TIMES = 4.0
"""Times its median, or one of that many parts of it, at which the colours end."""
FEWEST_STEPS = 4
"""Least number of recorded steps of a phase; a median of fewer says little."""


@dataclasses.dataclass(frozen=True, eq=False)
class LayerNorms:
    """Gradient norms of one phase by layer, and by tensor for tensors outside the layers."""

    phase: str
    rows: tuple[str, ...]
    step: Int64[np.ndarray, "recorded"]
    norms: Float64[np.ndarray, "rows recorded"]
    """NaN where one was not finite."""

    @property
    def ratios(self) -> Float64[np.ndarray, "rows recorded"]:
        """Each norm over the median of its row; NaN in a row whose median is 0, or that has none."""
        known = np.ma.masked_invalid(self.norms)
        median = np.ma.filled(np.ma.median(known, axis=1, keepdims=True).astype(float), np.nan)
        return self.norms / np.where(median > 0, median, np.nan)


def layer_norms(phase: str, curves: Curves) -> LayerNorms:
    """Return the norms of the training steps in `curves`, as `curves.with_norms` has read them."""
    recorded = sorted(curves.sparse.by_step.keys() & set(curves.step.tolist()))
    group = f"{NORM_BY_PART[GRADIENT]}/"
    rows: dict[tuple[float, str], list[int]] = {}
    for index, name in enumerate(curves.sparse.names):
        if name.startswith(group):
            part = name.removeprefix(group)
            layer = layer_of(part)
            rows.setdefault((math.inf, part) if layer is None else (layer, f"layer {layer}"), []).append(index)
    order = sorted(rows, key=lambda row: row[0])
    values = np.array([curves.sparse.by_step[step] for step in recorded])
    values = values.reshape(len(recorded), len(curves.sparse.names))
    # The norm of several parts together is the root of the sum of their squares.
    norms = [np.sqrt(np.square(values[:, np.array(rows[key])]).sum(axis=1)) for key in order]
    names = tuple(name for _, name in order)
    return LayerNorms(phase, names, np.array(recorded, np.int64), np.array(norms).reshape(len(order), len(recorded)))


def norm_maps(phases: Sequence[LayerNorms]) -> Markup:
    """Return a heat map for each phase, with an explanation; nothing without phases."""
    return macro("pages.html", "norm_maps", [(norms.phase, heat_map(norms)) for norms in phases])


def heat_map(norms: LayerNorms) -> Markup:
    """Return rows by recorded training steps."""
    starts, worst = _columns_of(norms.ratios)
    height = 70 + 14 * len(norms.rows)
    x = Range1d(0, len(starts), name="finished training steps")
    panel = Panel("", x, norms.rows, height=height)
    panel.heat(worst, norms.step[starts], DIVERGING, _MOST_TIMES)
    recorded = counted(len(norms.step), "step")
    return figure([panel], f"{norms.phase}: recorded at {recorded}, from {norms.step[0]:,} to {norms.step[-1]:,}.")


def _columns_of(ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of columns of nearly equal width, and each row's ratio in them that is furthest from 1.

    A ratio that is not finite counts as furthest.
    """
    recorded = ratios.shape[1]
    starts = np.unique(np.linspace(0, recorded, min(MOST_COLUMNS, recorded) + 1).astype(np.int64)[:-1])
    found = []
    for piece in np.split(ratios, starts[1:], axis=1):
        with np.errstate(divide="ignore"):
            far = np.where(np.isnan(piece), np.inf, np.abs(np.log2(piece)))
        found.append(piece[np.arange(len(piece)), far.argmax(axis=1)])
    return starts, np.stack(found, axis=1)
