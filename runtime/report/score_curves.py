"""Measures over the tokens of a run, a panel each: bits per byte and scores, with bars of their 95 % interval."""

import dataclasses
from collections.abc import Sequence

from bokeh.models import Range1d
from markupsafe import Markup

from runtime.optim.ema import HOT
from runtime.report.figure import figure
from runtime.report.panel import Panel, Series, around, series_of, token_range

CONFIDENCE = 1.96
"""Standard errors on either side of a value that hold the truth 19 times in 20."""
BRANCHES = "branches"
"""Curve of points that are not joined, since none follows another."""
_CAPTION = (
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
    interval: tuple[float, float] | None = None
    """Ends of the bar, where a standard error does not give them."""
    series: str = ""
    """The curve that it belongs to; by default that of its weights."""

    @property
    def curve(self) -> str:
        """The phase, with the name of its weights."""
        return self.phase if self.weights == HOT else f"{self.phase}, {self.weights}"


def measures(points: Sequence[ScorePoint], *, end: float, caption: str = _CAPTION) -> Markup:
    """Return a panel for each measure of a run of `end` tokens, with its curves."""
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
    marks = [(float(point.tokens), point.value, _tip(point)) for point in points]
    style = {"size": 7, "line_color": series.colour, "fill_color": series.colour}
    panel.draw(panel.plot.scatter, series, ("x", "y", "tip"), marks, **style)


def _interval(point: ScorePoint) -> tuple[float, float]:
    if point.interval is not None:
        return point.interval
    reach = CONFIDENCE * (point.stderr or 0.0)
    return point.value - reach, point.value + reach


def _tip(point: ScorePoint) -> str:
    place = f"{point.curve} after step {point.step:,}" if point.step else point.curve
    error = "" if point.stderr is None else f" ± {point.stderr:.4f}"
    if point.interval is not None:
        error = " ({:.4f} – {:.4f})".format(*point.interval)
    return f"{place}: {point.value:.4f}{error}"
