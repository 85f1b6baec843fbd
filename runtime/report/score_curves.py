"""Score curves: a page with each measure over the tokens of a run, with bars of one standard error."""

import dataclasses
from collections.abc import Sequence

from runtime.optim.ema import HOT
from runtime.report.document import document
from runtime.report.figures import figure
from runtime.report.markup import NONE, Markup, table
from runtime.report.panel import TOKENS, Extent, Panel, Series, around, series_of
from runtime.report.recipe import counted

_CAPTION = (
    "Bars are one standard error of the mean over a task's items; two values whose bars overlap may not differ. A "
    "dotted line is chance."
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
    stderr: float | None
    chance: float | None

    @property
    def curve(self) -> str:
        """The name of the curve that the point belongs to."""
        return self.phase if self.weights == HOT else f"{self.phase}, {self.weights}"


def page(title: str, points: Sequence[ScorePoint]) -> str:
    """Return the whole page; `points` has at least one point, and is sorted by measure and tokens."""
    series = series_of(list(dict.fromkeys(point.curve for point in points)))
    measures = list(dict.fromkeys(point.measure for point in points))
    end = max(point.tokens for point in points)
    panels = [_panel(name, [point for point in points if point.measure == name], series, end) for name in measures]
    lead = f"{counted(len(measures), 'measure')} of {counted(len(series), 'set')} of weights, as they train."
    return document(title, lead, figure(panels, _CAPTION, legend=series, columns=2), _table(points))


def _panel(measure: str, points: Sequence[ScorePoint], series: dict[str, Series], end: int) -> Panel:
    spread = [point.value + sign * (point.stderr or 0.0) for point in points for sign in (-1, 1)]
    chance = next((point.chance for point in points if point.chance is not None), None)
    limits = around([*spread, *([] if chance is None else [chance])])
    panel = Panel(measure, Extent(0, 1.02 * max(end, 1), name=TOKENS), limits, x_title="tokens")
    if chance is not None:
        panel.level(chance)
    for name in dict.fromkeys(point.curve for point in points):
        own = [point for point in points if point.curve == name]
        xs, ys = [float(point.tokens) for point in own], [point.value for point in own]
        panel.line(series[name], xs, ys)
        ends = [(x, y - p.stderr, x, y + p.stderr) for x, y, p in zip(xs, ys, own, strict=True) if p.stderr is not None]
        if ends:
            panel.ties(series[name], ends)
        panel.points(series[name], xs, ys, [f"{name} after step {point.step:,}: {_figure(point)}" for point in own])
    return panel


def _figure(point: ScorePoint) -> str:
    return f"{point.value:.4f}" if point.stderr is None else f"{point.value:.4f} ± {point.stderr:.4f}"


def _table(points: Sequence[ScorePoint]) -> Markup:
    rows = []
    for point in points:
        chance = NONE if point.chance is None else f"{point.chance:.3f}"
        rows.append([point.measure, point.curve, f"{point.step:,}", f"{point.tokens:,}", _figure(point), chance])
    headings = ["measure", "phase", "#after step", "#tokens", "#value", "#chance"]
    return table(headings, rows, "Every measure", grouped=1)
