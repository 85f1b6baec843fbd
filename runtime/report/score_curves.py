"""Measures over the tokens of a run, a panel each: bits per byte and scores, with bars of their 95 % interval."""

import dataclasses
from collections.abc import Sequence

from bokeh.models import Range1d
from markupsafe import Markup

from runtime.optim.ema import HOT
from runtime.report.figure import figure
from runtime.report.html import document, table
from runtime.report.panel import Panel, Series, around, series_of, token_range
from runtime.report.recipe import counted

CONFIDENCE = 1.96
"""Standard errors on either side of a value that hold the truth 19 times in 20."""
BRANCHES = "branches"
"""Curve of points that are not joined, since none follows another."""
CAPTION = (
    "Bars: 95 % interval (1.96 standard errors of the mean over a task's items). Dashed: chance; a value whose bar "
    "crosses it does not differ from guessing. Axes differ from panel to panel."
)


@dataclasses.dataclass(frozen=True)
class ScorePoint:
    """A measure of a phase's weights after a training step."""

    phase: str
    weights: str
    step: int
    tokens: int
    measure: str
    value: float
    stderr: float | None = None
    chance: float | None = None
    series: str = ""
    """The curve that it belongs to; by default that of its weights."""

    @property
    def curve(self) -> str:
        """The phase, with the name of its weights."""
        return self.phase if self.weights == HOT else f"{self.phase}, {self.weights}"

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.stderr is None else f"{self.value:.4f} ± {self.stderr:.4f}"


def page(title: str, points: Sequence[ScorePoint]) -> str:
    """Return the whole page; `points` by measure and tokens, at least one."""
    num_measures, num_curves = len({point.measure for point in points}), len({point.curve for point in points})
    lead = f"{counted(num_measures, 'measure')} of {counted(num_curves, 'set')} of weights, as they train."
    end = max(1, *(point.tokens for point in points))
    rows = [
        [
            point.measure,
            point.curve,
            f"{point.step:,}",
            f"{point.tokens:,}",
            str(point),
            "–" if point.chance is None else f"{point.chance:.3f}",
        ]
        for point in points
    ]
    headings = ["measure", "phase", "#after step", "#tokens", "#value", "#chance"]
    return document(title, lead, measures(points, CAPTION, end=end), table(headings, rows, "Every measure", grouped=1))


def measures(points: Sequence[ScorePoint], caption: str, *, end: float) -> Markup:
    """Return a panel for each measure, with its curves."""
    legend = series_of(list(dict.fromkeys(point.series or point.curve for point in points)))
    panels, x = [], token_range(1.03 * end)
    for measure in dict.fromkeys(point.measure for point in points):
        shown = [point for point in points if point.measure == measure]
        panel = _panel(measure, shown, x)
        for name, series in legend.items():
            _add_curve(panel, series, [point for point in shown if (point.series or point.curve) == name])
        panels.append(panel)
    return figure(panels, caption, legend=legend, columns=3)


def _panel(measure: str, points: Sequence[ScorePoint], x: Range1d) -> Panel:
    chances = [point.chance for point in points if point.chance is not None][:1]
    ends = [end for point in points for end in _interval(point)]
    panel = Panel(measure, x, around([*ends, *chances], 0.1), height=240)
    for chance in chances:
        panel.level(chance)
    return panel


def _add_curve(panel: Panel, series: Series, points: Sequence[ScorePoint]) -> None:
    if len(points) > 1 and series.name != BRANCHES:
        panel.line(series, [point.tokens for point in points], [point.value for point in points])
    intervals = ((point.tokens, *_interval(point)) for point in points)
    bars = [(tokens, low, tokens, high) for tokens, low, high in intervals if low < high]
    panel.draw(panel.plot.segment, series, ("x0", "y0", "x1", "y1"), bars, line_color=series.colour)
    tips = [f"{point.curve} after step {point.step:,}: {point}" for point in points]
    marks = [(float(point.tokens), point.value, tip) for point, tip in zip(points, tips, strict=True)]
    style = {"size": 7, "line_color": series.colour, "fill_color": series.colour}
    panel.draw(panel.plot.scatter, series, ("x", "y", "tip"), marks, **style)


def _interval(point: ScorePoint) -> tuple[float, float]:
    reach = CONFIDENCE * (point.stderr or 0.0)
    return point.value - reach, point.value + reach
