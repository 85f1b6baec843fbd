"""Norms as a page: which layers had gradients far from their usual size, and when; a panel a phase.

The norms of single layers of Marin's 32B moved before its loss spiked. This page is made on request and is no part of
the report, since how often a phase records norms may differ between equal runs.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from runtime.report.document import document
from runtime.report.markup import Markup, element, joined
from runtime.report.page import figure
from runtime.report.plots import TEXT_SIZE, Frame, drawing, name_column, straight, text
from runtime.report.scales import Scale, counted, fitted
from runtime.report.tables import CONTINUED, NONE, Cell, Column, table
from runtime.tracking.curves import NORM_BY_PART, Curves
from runtime.tracking.parts import GRADIENT, layer_of

MOST_LEVELS = 4
"""Colours on either side of the usual size, each a factor of the square root of 2 further from it."""
_MOST_COLUMNS = 120
_LEAST_COLUMN, _NAMED_ROW, _ROW, _HEAD, _FOOT = 4.0, 13.0, 9.0, 22.0, 26.0
_MOST_ROWS_NAMED = 12
_OPACITIES = (0.0, 0.15, 0.35, 0.65, 1.0)
_NOT_FINITE = "fill:var(--ink)"
FEWEST_TOLD = 4
"""Least number of recorded steps of a phase; a median of fewer says little."""
CAPTION = (
    "A row for each layer, the first at the top, then one for each tensor that belongs to none; from left to right the "
    "training steps with recorded norms. Colour: the norm of the row's gradient before clipping, against the median of "
    "the same row in the same phase. Where there are more steps than columns, a column has the one furthest from it."
)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerNorms:
    """Gradient norms of one phase by layer, and by tensor of those that belong to no layer."""

    phase: str
    rows: tuple[str, ...]
    step: Int64[np.ndarray, "recorded"]
    norms: Float64[np.ndarray, "rows recorded"]
    """Not a number where one was not finite."""

    @property
    def ratios(self) -> Float64[np.ndarray, "rows recorded"]:
        """Each norm over the median of its row; of a row whose median is 0, or that has none, not a number."""
        with np.errstate(all="ignore"):
            median = np.array(
                [np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan for row in self.norms]
            )
            return self.norms / np.where(median > 0, median, np.nan)[:, None]


def layer_norms(phase: str, curves: Curves) -> LayerNorms:
    """Return the norms of the training steps in `curves`, as `curves.with_norms` has read them."""
    recorded = sorted(curves.sparse.by_step.keys() & set(curves.step.tolist()))
    group = f"{NORM_BY_PART[GRADIENT]}/"
    rows: dict[int | str, list[int]] = {}
    for index, name in enumerate(curves.sparse.names):
        if name.startswith(group):
            part = name.removeprefix(group)
            layer = layer_of(part)
            rows.setdefault(part if layer is None else layer, []).append(index)
    layers = sorted(key for key in rows if isinstance(key, int))
    order: list[int | str] = [*layers, *(key for key in rows if isinstance(key, str))]
    values = np.array([curves.sparse.by_step[step] for step in recorded]).reshape(
        len(recorded), len(curves.sparse.names)
    )
    # The norm of several parts together is the root of the sum of their squares.
    norms = [np.sqrt(np.square(values[:, np.array(rows[key])]).sum(axis=1)) for key in order]
    names = tuple(f"layer {key}" if isinstance(key, int) else key for key in order)
    return LayerNorms(phase, names, np.array(recorded, np.int64), np.array(norms).reshape(len(order), len(recorded)))


def page(title: str, phases: Sequence[LayerNorms], notes: Sequence[str] = ()) -> str:
    """Return the whole page; `phases` in the order in which they are shown, each with a row and a training step."""
    num_recorded = sum(len(norms.step) for norms in phases)
    summary_text = (
        f"Gradient norms by layer, recorded at {counted(num_recorded, 'step')} of {counted(len(phases), 'phase')}."
    )
    panels = [
        joined([element("h3", norms.phase), figure(functools.partial(heat_map, norms), _range(norms))])
        for norms in phases
    ]
    shown = element(
        "main",
        element("header", element("h1", title), element("p", summary_text, class_="lead"), element("p", CAPTION)),
        element("ul", *_keys(phases), class_="keys"),
        *panels,
        furthest_table(phases),
        *(element("p", f"{note}.") for note in notes),
    )
    return document(title, shown)


def level(ratio: float) -> int:
    """0 at the median, 4 at four times of it or more, -4 at a quarter or less."""
    if ratio <= 0:
        return -MOST_LEVELS
    return max(-MOST_LEVELS, min(MOST_LEVELS, round(2 * math.log2(ratio))))


def heat_map(norms: LayerNorms, width: float) -> Markup:
    """Return rows by training steps; neighbours of one colour share a rectangle."""
    left = name_column(norms.rows, width)
    across = width - left - 8
    starts, worst = _columns(norms.ratios, min(_MOST_COLUMNS, int(across / _LEAST_COLUMN)))
    cell = across / worst.shape[1]
    is_crowded = len(norms.rows) > 2 * _MOST_ROWS_NAMED
    heights = [_ROW if is_crowded and name.startswith("layer ") else _NAMED_ROW for name in norms.rows]
    bottom = _HEAD + sum(heights)
    frame = {"x": left, "y": _HEAD, "width": across, "height": bottom - _HEAD}
    parts: list[str] = [element("rect", style="fill:var(--band)", **frame)]
    every = math.ceil(len(norms.rows) / _MOST_ROWS_NAMED) if is_crowded else 1
    y = _HEAD
    for row, (name, height) in enumerate(zip(norms.rows, heights, strict=True)):
        if row % every == 0 or not name.startswith("layer "):
            parts.append(text(fitted(name, left - 10, TEXT_SIZE), left - 8, y + height / 2 + 3.8, "end", "name"))
        across_row = Frame(Scale(0, len(starts), left, width - 8), Scale(0, 1, y + height - 1, y))
        parts += _cells(norms, row, worst[row], starts, across_row)
        y += height
    ticks = sorted({0, len(starts) // 2, len(starts) - 1})
    for place, column in enumerate(ticks):
        x = left + (column + 0.5) * cell
        anchor = "start" if place == 0 else "end" if place == len(ticks) - 1 else "middle"
        parts.append(straight(x, bottom, x, bottom + 4, "axis"))
        last = place == len(ticks) - 1 and place > 0
        step = norms.step[-1] if last else norms.step[starts[column]]
        parts.append(text(f"{step:,}", x, bottom + 16, anchor))
    parts.append(text("finished training steps", width - 8, _HEAD - 8, "end", "title"))
    return drawing(width, bottom + _FOOT, f"Gradient norms of {norms.phase} by layer", *parts)


def _cells(norms: LayerNorms, row: int, ratios: np.ndarray, starts: np.ndarray, frame: Frame) -> list[Markup]:
    """Return one row; `frame` has a column of `starts` for each unit of its x."""
    parts = []
    keys = [level(float(ratio)) if math.isfinite(ratio) else None for ratio in ratios]
    begin = 0
    for end in range(1, len(keys) + 1):
        if end < len(keys) and keys[end] == keys[begin]:
            continue
        if keys[begin] != 0:
            piece = ratios[begin:end]
            last = int(starts[end]) - 1 if end < len(keys) else len(norms.step) - 1
            steps = f"steps {norms.step[starts[begin]]:,} to {norms.step[last]:,}"
            far = "not finite" if keys[begin] is None else f"{_times(piece)} its median"
            low, high = frame.x(begin), frame.x(end)
            shape = {"x": low, "y": frame.top, "width": high - low, "height": frame.bottom - frame.top}
            tip = f"{norms.rows[row]}, {steps}: {far}"
            parts.append(element("rect", style=_colour(keys[begin]), data_tip=tip, **shape))
        begin = end
    return parts


def _times(ratios: np.ndarray) -> str:
    furthest = ratios[np.argmax(_distances(ratios))]
    return f"{furthest:.3g} times"


def _distances(ratios: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.abs(np.log2(ratios))


def _columns(ratios: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of columns of nearly equal width, and each row's ratio in them that is furthest from 1.

    A ratio that is not finite counts as furthest.
    """
    recorded = ratios.shape[1]
    starts = np.unique(np.linspace(0, recorded, min(max(most, 1), recorded) + 1).astype(np.int64)[:-1])
    found = []
    for begin, end in zip(starts, [*starts[1:], recorded], strict=True):
        piece = ratios[:, begin:end]
        far = np.where(np.isnan(piece), np.inf, _distances(piece))
        found.append(piece[np.arange(len(piece)), far.argmax(axis=1)])
    return starts, np.stack(found, axis=1)


def _colour(key: int | None) -> str:
    if key is None:
        return _NOT_FINITE
    side = "var(--branch)" if key > 0 else "var(--main)"
    return f"fill:{side};fill-opacity:{_OPACITIES[abs(key)]:g}"


def _keys(phases: Sequence[LayerNorms]) -> list[Markup]:
    summary_text = {-4: "a quarter or less", -2: "half", 0: "the median", 2: "twice", 4: "four times or more"}
    keys: list[tuple[str, str]] = [
        ("fill:var(--band)" if key == 0 else _colour(key), word) for key, word in summary_text.items()
    ]
    if any(np.isnan(norms.ratios).any() for norms in phases):
        keys.append((_NOT_FINITE, "not finite, or a median of 0"))
    swatch = {"x": 1, "y": 1, "width": 12, "height": 12, "rx": 2}
    return [element("li", drawing(14, 14, "", element("rect", style=style, **swatch)), word) for style, word in keys]


def _range(norms: LayerNorms) -> str:
    recorded = counted(len(norms.step), "step")
    return f"{norms.phase}: recorded at {recorded}, from {norms.step[0]:,} to {norms.step[-1]:,}."


def furthest_table(phases: Sequence[LayerNorms]) -> Markup:
    """Return a table of at most three rows a phase, furthest above their median."""
    columns = [
        Column("phase"), Column("where"), Column("times its median", "number"), Column("after step", "number"),
        Column("norm", "number"), Column("median", "number"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for norms in phases:
        ratios = np.where(np.isnan(norms.ratios), -1.0, norms.ratios)
        order = np.argsort(-ratios.max(axis=1), kind="stable")[:3]
        for place, row in enumerate(order):
            at = int(ratios[row].argmax())
            name: str | Cell = norms.phase if place == 0 else CONTINUED
            if ratios[row, at] < 0:
                rows.append([name, norms.rows[row], NONE, NONE, NONE, NONE])
                continue
            norm, ratio = float(norms.norms[row, at]), float(ratios[row, at])
            figures = (f"{ratio:.2f}", f"{norms.step[at]:,}", f"{norm:.3g}", f"{norm / ratio:.3g}")
            rows.append([name, norms.rows[row], *figures])
    return table(columns, rows, "The greatest norms against the median of their layer, by phase")
