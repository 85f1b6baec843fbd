"""Panels: plots of Bokeh with axes, series of marks, and tips that show exact values.

Text of a run reaches Bokeh only as data, as a title or as the name of a series, all of which it escapes; the template
of a tip holds none.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.plotting import figure as bokeh_figure

from runtime.report.theme import COLOURS, GRID, INK, MAIN, MUTED, PAGE

Values = Sequence[float] | np.ndarray
Marks = Sequence[Sequence[Any]]
MAIN_LINE = "main line"
TOKENS = "tokens"
TOKEN_FORMAT = "0.[000000]a"
_GUESSED_SHARE = 0.03
"""Share of a run's tokens in which a model learns little more than which words are frequent."""
HATCHES = {"solid": None, "dashed": "right_diagonal_line", "dotted": "dot", "dashdot": "cross"}
"""Stroke of a line to the pattern of an area; the recipe at full size has 25 sources."""


@dataclasses.dataclass(frozen=True)
class Series:
    """An entry of the legend: marks that are shown and hidden together."""

    name: str
    colour: str
    dash: str = "solid"


def series_of(names: Sequence[str], first: int = 0) -> dict[str, Series]:
    """Return a series for each name: the colours from `first` on, each with four strokes, then again."""
    styles = [(colour, dash) for dash in HATCHES for colour in COLOURS[first:]]
    return {name: Series(name, *styles[index % len(styles)]) for index, name in enumerate(names)}


def main_and_branches(branches: Sequence[str]) -> dict[str, Series]:
    """Return a series for the main line, and one for each branch."""
    return {MAIN_LINE: Series(MAIN_LINE, MAIN), **series_of(branches, first=1)}


def token_range(end: float) -> models.Range1d:
    """Return an x range from the start of a run; those of a page zoom and pan together. One figure may have it."""
    return models.Range1d(0, end, name=TOKENS)


class Panel:
    """A plot of a figure. Its marks belong to series, which the legend of the figure shows and hides.

    The x axis has the name of its range. The y axis is numeric, or has named rows.
    """

    def __init__(
        self,
        title: str,
        x: models.Range1d,
        y: models.Range1d | Sequence[str],
        *,
        height: int = 260,
        x_format: str = TOKEN_FORMAT,
        y_format: str | None = None,
        value_format: str = "0,0.[0000]",
    ) -> None:
        self._rows = [] if isinstance(y, models.Range1d) else list(y)
        self.has_lines = self.is_smoothed = False
        self.height = height
        self._x_title = x.name or "at"
        self.plot = bokeh_figure(
            x_range=x,
            y_range=y if isinstance(y, models.Range1d) else models.FactorRange(factors=self._rows[::-1]),
            height=height,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools=[models.BoxZoomTool(dimensions="width"), models.WheelZoomTool(dimensions="width", modifiers="ctrl")],
            title=title,
            x_axis_label=x.name,
            output_backend="canvas",
            min_border_left=8 if self._rows else 58,
            min_border_right=12,
        )
        _style(self.plot)
        self.plot.xaxis.formatter = models.NumeralTickFormatter(format=x_format)
        self.plot.xaxis.ticker = models.BasicTicker(desired_num_ticks=5 if x_format == TOKEN_FORMAT else 3)
        if y_format is not None:
            self.plot.yaxis.formatter = models.NumeralTickFormatter(format=y_format)
        tips = [("", "$name"), (self._x_title, "@x{0,0.[0000]}"), ("value", f"@y{{{value_format}}}")]
        self._lines = models.HoverTool(renderers=[], mode="vline", line_policy="nearest", limit=8, tooltips=tips)
        self._marks = models.HoverTool(renderers=[], mode="mouse", tooltips=[("", "@tip")])

    def line(
        self, series: Series, xs: Values, ys: Values, *, name: str | None = None, smooth: bool = False, phase: str = ""
    ) -> None:
        """Draw a line; `smooth` draws the values pale and lets the page draw a smoothed line over them.

        `phase` is a tag of the line, for a page that shows the rows of the phase after a click.
        """
        self.has_lines, self.is_smoothed = True, self.is_smoothed or smooth
        data = models.ColumnDataSource({"x": numbers(xs), "y": numbers(ys)}, name=name or series.name)
        data.tags = ["smooth"] if smooth else []
        shape = {"line_color": series.colour, "line_dash": series.dash, "line_join": "round"}
        drawn = self.plot.line("x", "y", source=data, line_width=1.6, line_alpha=0.3 if smooth else 1.0, **shape)
        tags = [name or series.name, series.name, *([phase] if phase else [])]
        self._add(drawn, self._lines, *tags)
        if smooth:
            self._add(self.plot.line("x", "smooth", source=data, line_width=1.8, **shape), None, *tags)

    def draw(self, glyph: Callable[..., Any], series: Series, names: Sequence[str], marks: Marks, **style: Any) -> None:
        """Draw marks by a method of `plot`, whose fields have these names; "tip" is shown on pointing."""
        if marks:
            columns = {name: list(column) for name, column in zip(names, zip(*marks, strict=True), strict=True)}
            fields = {name: name for name in names if name != "tip"}
            drawn = glyph(source=models.ColumnDataSource(columns, name=series.name), **fields, **style)
            self._add(drawn, self._marks if "tip" in names else None, series.name, series.name)

    def heat(self, ratios: np.ndarray, columns: Sequence[int], palette: Sequence[str], most: float) -> None:
        """Colour each row by its ratios, from 1 / `most` to `most` on a log scale; NaN is black."""
        ticks = np.unique(np.linspace(0, len(columns) - 1, min(5, len(columns))).astype(int))
        self.plot.xaxis.ticker = models.FixedTicker(ticks=[float(tick) + 0.5 for tick in ticks])
        self.plot.xaxis.major_label_overrides = {float(tick) + 0.5: f"{columns[tick]:,}" for tick in ticks}
        mapper = models.LogColorMapper(palette=list(palette), low=1 / most, high=most, nan_color=INK)
        tips = [("", "$name"), (self._x_title, "@column"), ("times its median", "@ratio{0.000}")]
        hover = models.HoverTool(renderers=[], tooltips=tips)
        for place, (row, values) in enumerate(zip(reversed(self._rows), ratios[::-1], strict=True)):
            data = {"ratio": [values.astype(np.float32)[None]], "column": [np.array([columns], np.int32)]}
            size = {"x": 0, "y": place, "dw": len(columns), "dh": 1}
            image = self.plot.image(
                "ratio", source=models.ColumnDataSource(data, name=row), color_mapper=mapper, **size
            )
            self._add(image, hover, row, row)

    def level(self, value: float) -> None:
        """Draw a dashed line at a height, over the width of the panel."""
        self.plot.add_layout(models.Span(location=value, dimension="width", line_color=MUTED, line_dash="dashed"))

    def _add(self, drawn: Any, hover: models.HoverTool | None, name: str, *tags: str) -> None:
        drawn.name, drawn.tags = name, list(tags)
        if hover is not None:
            if not hover.renderers:
                self.plot.add_tools(hover)
            hover.renderers = [*hover.renderers, drawn]


def extremes(xs: np.ndarray, ys: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `most` rows that draw the same line: first, least, greatest and last of each column of it.

    The method is M4 (VLDB 2014). Values that are not finite are dropped.
    """
    known = np.isfinite(ys)
    xs, ys = xs[known], ys[known]
    if len(xs) <= most:
        return xs, ys
    columns = most // 4
    column = np.minimum(((xs - xs[0]) / (xs[-1] - xs[0]) * columns).astype(np.int64), columns - 1)
    keep: set[int] = set()
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(xs)], strict=True):
        piece = ys[first:end]
        keep |= {int(first), int(first + piece.argmin()), int(first + piece.argmax()), int(end - 1)}
    rows = np.array(sorted(keep))
    return xs[rows], ys[rows]


def settled(tokens: np.ndarray, values: np.ndarray, end: float) -> np.ndarray:
    """Return the values behind the first tokens of a run of `end` tokens, for the upper end of an axis.

    The first losses fall from ln(vocabulary size): with them on the axis, all that follows is a flat line.
    """
    behind = values[tokens >= _GUESSED_SHARE * end]
    return behind if len(behind) else values


def around(values: Values, share: float = 0.06, least: float = 1e-9) -> models.Range1d:
    """Return a range around values, with room of a share of their span on either side."""
    low, high = float(np.min(values)), float(np.max(values))
    room = max((high - low) * share, least, abs(high) * 1e-6)
    return models.Range1d(low - room, high + room)


def numbers(values: Values) -> list[float]:
    """Return values as JSON writes them: whole ones exact, others with eight digits, more than a float32 has.

    Bokeh would compress an array, whose bytes then depend on the version of zlib.
    """
    return [int(value) if value == int(value) else float(f"{value:.8g}") for value in np.asarray(values).tolist()]


def _style(plot: models.Plot) -> None:
    """Set each colour that the page turns for a dark screen."""
    plot.background_fill_color = plot.border_fill_color = PAGE
    plot.outline_line_color = None
    plot.title.text_color, plot.title.text_font_size = INK, "12px"
    plot.grid.grid_line_color = GRID
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = GRID
        axis.minor_tick_line_color = None
        axis.major_label_text_color = axis.axis_label_text_color = MUTED
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "11px"
        axis.axis_label_text_font_style = "normal"
    if isinstance(plot.y_range, models.FactorRange):
        plot.ygrid.grid_line_color = None
