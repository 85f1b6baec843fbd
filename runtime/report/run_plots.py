"""Figures of the run over tokens: its settings (timeline), and its loss, with the branches and by source."""

import dataclasses
import itertools
from collections.abc import Mapping

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
from runtime.report.theme import INK, PAGE

MIXTURE = "mixture (share of sequences by source)"


def timeline(report: Report, caption: str) -> Markup:
    """Return phases, learning rate and batch size of all runs, and the mixture of the main line."""
    runs, x = _runs(report), _tokens(report)
    lines = [_line(RATE, phase, phase.curve.learning_rate) for phase in report.phases]
    lines += [_line(BATCH, phase, phase.curve.global_batch_size) for phase in report.phases]
    panels = [_phases(report, runs, x), *line_panels(lines, runs, x)]
    return Markup().join([figure(panels, caption, legend=runs), _mixture(report)])


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
    points = []
    for phase in report.models:
        evaluation = report.evaluation_of(phase)
        if evaluation is None or phase.same_as is not None:
            continue
        by_weights = list(evaluation.by_weights.items())
        for weights, values in by_weights if phase.is_main else by_weights[:1]:
            points += [_point(phase, weights, domain, value) for domain, value in values.items()]
    points.sort(key=lambda point: point.measure)
    return measures(points, caption=caption, end=report.main_line[-1].consumed_tokens)


def scores(report: Report) -> Markup:
    """Return one accuracy for each task of the exported models."""
    phases = {phase.name: phase for phase in report.models}
    exports = {export.name: export for export in report.exports}
    points = []
    for score in leading(report.scores):
        export = exports[score.export]
        point = _point(phases[export.phase], export.weights, score.measure, score.value)
        points.append(dataclasses.replace(point, stderr=score.stderr, chance=score.chance))
    return measures(points, end=report.main_line[-1].consumed_tokens)


def _point(phase: Phase | OtherWeights, weights: str, measure: str, value: float) -> ScorePoint:
    """Return a point at the end of a phase; points of branches are not joined."""
    series = BRANCHES if not phase.is_main else "weights" if weights == HOT else weights
    return ScorePoint(phase.name, weights, phase.step, phase.consumed_tokens, measure, value, series=series)


def _tokens(report: Report) -> Range1d:
    return token_range(1.01 * report.main_line[-1].consumed_tokens)


def _runs(report: Report) -> dict[str, Series]:
    return main_and_branches([phase.name for phase in report.branches])


def _series_name(phase: Phase) -> str:
    return MAIN_LINE if phase.is_main else phase.name


def _line(panel: str, phase: Phase, values: np.ndarray) -> Line:
    return Line(panel, phase.name, _series_name(phase), phase.curve.consumed_tokens, values)


def _phases(report: Report, runs: Mapping[str, Series], x: Range1d) -> Panel:
    """Return a row for each phase: a bar over its tokens, with its name beside it."""
    panel = Panel("phases", x, [phase.name for phase in report.phases], height=70 + 21 * len(report.phases))
    panel.plot.min_border_left = 58  # as the panels below it
    panel.plot.yaxis.visible = False
    end, names = report.main_line[-1].consumed_tokens, []
    for phase in report.phases:
        tip = (
            f"{phase.name}: {tokens_label(phase.start_tokens)} to {tokens_label(phase.consumed_tokens)} tokens, "
            f"steps {phase.start_step + 1:,} to {phase.step:,}"
        )
        tip += f", from {phase.parent}" if phase.parent else ""
        bar = phase.name, phase.start_tokens, phase.consumed_tokens, tip
        series = runs[_series_name(phase)]
        style = {"height": 0.7, "fill_color": series.colour, "line_color": PAGE}
        panel.draw(panel.plot.hbar, series, ("y", "left", "right", "tip"), [bar], **style)
        # Behind the bar, else before it, else on it.
        is_early = phase.consumed_tokens <= 0.6 * end
        is_behind = is_early or phase.start_tokens < 0.25 * end
        place = phase.consumed_tokens if is_early else phase.start_tokens
        names.append((place, phase.name, phase.name, *(("left", 4) if is_behind else ("right", -4))))
    style = {"text_baseline": "middle", "text_font_size": "11px", "text_color": INK}
    panel.draw(panel.plot.text, Series("names", INK), ("x", "y", "text", "text_align", "x_offset"), names, **style)
    return panel


def _mixture(report: Report) -> Markup:
    spans = [span for phase in report.main_line for span in phase.mixture]
    if not spans:
        return Markup()
    # Earlier sources below, larger ones first among those that begin together.
    by_share = (sorted(span.shares, key=lambda name: (-span.shares[name], name)) for span in spans)
    sources = series_of(list(dict.fromkeys(itertools.chain.from_iterable(by_share))))
    panel = Panel(MIXTURE, _tokens(report), Range1d(0, 1), height=280, y_format="0%")
    below = [0.0] * len(spans)
    for source, series in sources.items():
        boxes = []
        for index, span in enumerate(spans):
            if share := span.shares.get(source, 0.0):
                tokens = f"{tokens_label(span.begin_tokens)} to {tokens_label(span.end_tokens)} tokens"
                tip = f"{source}: {share:.2%} of sequences, {tokens}"
                boxes.append((span.begin_tokens, span.end_tokens, below[index], below[index] + share, tip))
                below[index] += share
        hatch = {"hatch_pattern": HATCHES[series.dash], "hatch_color": PAGE, "hatch_alpha": 0.5}
        names = ("left", "right", "bottom", "top", "tip")
        panel.draw(panel.plot.quad, series, names, boxes, fill_color=series.colour, line_color=PAGE, **hatch)
    return figure([panel], "The main line.", legend=sources)
