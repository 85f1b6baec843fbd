"""Figures of the run over tokens: its settings (timeline), and its loss, with the branches and by source."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from bokeh.models import Range1d
from markupsafe import Markup

from runtime.optim.ema import HOT
from runtime.report.contents import OtherWeights, Phase, Report, leading
from runtime.report.curve_plots import BATCH, LOSS, RATE, SOURCE_LOSS, Line, line_panels
from runtime.report.figure import figure
from runtime.report.panel import (
    HATCHES,
    MAIN_LINE,
    Panel,
    Series,
    main_and_branches,
    series_of,
    token_range,
)
from runtime.report.recipe import tokens_label
from runtime.report.score_curves import BRANCHES, ScorePoint, measures
from runtime.report.theme import PAGE

MIXTURE = "mixture (share of sequences by source)"


class MixtureRange(NamedTuple):
    """Tokens during which the shares are the same."""

    low: float
    high: float
    shares: Mapping[str, float]


def mixture_ranges(phases: Sequence[Phase]) -> list[MixtureRange]:
    """Return the mixture of consecutive phases over tokens, equal neighbours joined."""
    found: list[MixtureRange] = []
    for phase in phases:
        # The training step after `step` finished ones is the row with step + 1.
        steps = np.concatenate([[phase.start_step], phase.curve.step])
        tokens = np.concatenate([[phase.start_tokens], phase.curve.consumed_tokens])
        ends = [span.start_step for span in phase.mixture[1:]] + [int(steps[-1])]
        for span, end in zip(phase.mixture, ends, strict=True):
            first, last = max(span.start_step, int(steps[0])), min(end, int(steps[-1]))
            if first >= last:
                continue
            low, high = (float(np.interp(step, steps, tokens)) for step in (first, last))
            if found and found[-1].shares == span.shares:
                low = found.pop().low
            found.append(MixtureRange(low, high, span.shares))
    return found


def timeline(report: Report, caption: str) -> list[Markup]:
    """Return phases, learning rate and batch size of all runs, and the mixture of the main line."""
    runs, x = _runs(report), _tokens(report)
    lines = [_line(RATE, phase, phase.curve.learning_rate) for phase in report.phases]
    lines += [_line(BATCH, phase, phase.curve.global_batch_size) for phase in report.phases]
    return [figure([_phases(report, runs, x), *line_panels(lines, runs, x)], caption, legend=runs), _mixture(report)]


def loss(report: Report, caption: str) -> Markup:
    """Return the train loss of the main line, with the branches off it."""
    runs = _runs(report)
    lines = [_line(LOSS, phase, phase.curve.loss) for phase in report.phases]
    return figure(line_panels(lines, runs, _tokens(report)), caption, legend=runs)


def source_losses(report: Report, caption: str) -> Markup:
    """Return the loss of each source over the tokens of the main line; a gap is a phase that did not draw it."""
    sources = series_of([curve.source for curve in report.source_curves])
    lines = []
    for curve in report.source_curves:
        for phase in report.main_line:
            rows = (curve.step > phase.start_step) & (curve.step <= phase.step)
            if rows.any():
                tokens = np.interp(curve.step[rows], phase.curve.step, phase.curve.consumed_tokens)
                name = f"{curve.source}, {phase.name}"
                lines.append(Line(SOURCE_LOSS, name, curve.source, tokens, curve.loss[rows]))
    return figure(line_panels(lines, sources, _tokens(report)), caption, legend=sources)


def domains(report: Report, caption: str) -> Markup:
    """Return bits per byte of each domain at the end of the phases; of a branch those of its best weights."""
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    points = []
    for phase in report.models:
        if phase.name in found and phase.same_as is None:
            evaluation = found[phase.name]
            kept = evaluation.averages or {HOT: evaluation.hot}
            shown = {HOT: evaluation.hot, **kept} if phase.is_main else dict(list(kept.items())[:1])
            for weights, values in shown.items():
                points += [_point(phase, weights, domain, value) for domain, value in values.items()]
    points.sort(key=lambda point: point.measure)
    return measures(points, caption, end=report.main_line[-1].consumed_tokens)


def scores(report: Report, caption: str) -> Markup:
    """Return one accuracy for each task of the exported models."""
    phases = {phase.name: phase for phase in report.models}
    exports = {export.name: export for export in report.exports}
    points = []
    for score in leading(report.scores):
        export = exports[score.export]
        points.append(
            _point(phases[export.phase], export.weights, score.measure, score.value, score.stderr, score.chance)
        )
    return measures(points, caption, end=report.main_line[-1].consumed_tokens)


def _point(
    phase: Phase | OtherWeights,
    weights: str,
    measure: str,
    value: float,
    stderr: float | None = None,
    chance: float | None = None,
) -> ScorePoint:
    """Return a point at the end of a phase; those of branches are not joined."""
    series = BRANCHES if not phase.is_main else "weights" if weights == HOT else weights
    return ScorePoint(phase.name, weights, phase.step, phase.consumed_tokens, measure, value, stderr, chance, series)


def _tokens(report: Report) -> Range1d:
    return token_range(1.01 * report.main_line[-1].consumed_tokens)


def _runs(report: Report) -> dict[str, Series]:
    return main_and_branches([phase.name for phase in report.branches])


def _series_name(phase: Phase) -> str:
    return MAIN_LINE if phase.is_main else phase.name


def _line(panel: str, phase: Phase, values: np.ndarray) -> Line:
    return Line(panel, phase.name, _series_name(phase), phase.curve.consumed_tokens, values)


def _phases(report: Report, runs: Mapping[str, Series], x: Range1d) -> Panel:
    panel = Panel("phases", x, [phase.name for phase in report.phases])
    panel.plot.min_border_left = 58  # as the panels below it
    for phase in report.phases:
        tip = (
            f"{phase.name}: {tokens_label(phase.start_tokens)} to {tokens_label(phase.consumed_tokens)} tokens, "
            f"steps {phase.start_step + 1:,} to {phase.step:,}"
        )
        tip += f", from {phase.parent}" if phase.parent else ""
        series = runs[_series_name(phase)]
        panel.bars(series, [(phase.name, phase.start_tokens, phase.consumed_tokens, tip)])
    end = report.main_line[-1].consumed_tokens
    panel.names_inside({phase.name: _name_place(phase, end) for phase in report.phases})
    return panel


def _name_place(phase: Phase, end: float) -> tuple[float, Literal["left", "right"]]:
    """Return where the name of a phase stands: behind its bar, else before it, else on it."""
    if phase.consumed_tokens <= 0.6 * end:
        return phase.consumed_tokens, "left"
    return phase.start_tokens, "right" if phase.start_tokens >= 0.25 * end else "left"


def _mixture(report: Report) -> Markup:
    ranges = mixture_ranges(report.main_line)
    if not ranges:
        return Markup()
    # Earlier sources below, larger ones first among those that begin together.
    by_share = (sorted(part.shares, key=lambda name: (-part.shares[name], name)) for part in ranges)
    sources = series_of(list(dict.fromkeys(itertools.chain.from_iterable(by_share))))
    panel = Panel(MIXTURE, _tokens(report), Range1d(0, 1), height=280, y_format="0%")
    below = [0.0] * len(ranges)
    for source, series in sources.items():
        boxes = []
        for index, part in enumerate(ranges):
            if share := part.shares.get(source, 0.0):
                tokens = f"{tokens_label(part.low)} to {tokens_label(part.high)} tokens"
                tip = f"{source}: {share:.2%} of sequences, {tokens}"
                boxes.append((part.low, part.high, below[index], below[index] + share, tip))
                below[index] += share
        hatch = {"hatch_pattern": HATCHES[series.dash], "hatch_color": PAGE, "hatch_alpha": 0.5}
        names = ("left", "right", "bottom", "top", "tip")
        panel.draw(panel.plot.quad, series, names, boxes, fill_color=series.colour, line_color=PAGE, **hatch)
    return figure([panel], "The main line.", legend=sources)
