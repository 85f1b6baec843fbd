"""Figures of the run over tokens: its settings (timeline), and its loss, with the branches and by source."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from runtime.report.contents import Phase, Report, SourceCurve
from runtime.report.figures import figure
from runtime.report.markup import Markup
from runtime.report.panel import TOKENS, Extent, Panel, Series, around, main_and_branches, series_of, settled
from runtime.report.recipe import tokens_label

_NO_RATE = 1e-3
"""Axis of a run in which no training step had a rate above 0."""


class MixtureStretch(NamedTuple):
    """Tokens during which the shares are the same."""

    low: float
    high: float
    shares: Mapping[str, float]


def token_range(report: Report) -> Extent:
    """Return the x range of a figure over the tokens of the main line; those of a page zoom together."""
    return Extent(0, 1.01 * report.main_line[-1].consumed_tokens, name=TOKENS)


def mixture_stretches(phases: Sequence[Phase]) -> list[MixtureStretch]:
    """Return the mixture of consecutive phases over tokens, equal neighbours joined."""
    found: list[MixtureStretch] = []
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
            found.append(MixtureStretch(low, high, span.shares))
    return found


def timeline(report: Report, caption: str) -> Markup:
    """Return phases, learning rate, batch size and mixture above one token axis."""
    runs = _runs(report)
    stretches = mixture_stretches(report.main_line)
    sources = _sources_of(stretches)
    x = token_range(report)
    panels = [_phases(report, runs, x), _rates(report, runs, x), _batches(report, runs, x)]
    panels += [_mixture(stretches, sources, x)] if stretches else []
    return figure(panels, caption, legend=sources | runs if stretches else runs)


def loss(report: Report, caption: str) -> Markup:
    """Return the train loss of the main line, with the branches off it; a mark is the final loss of a branch."""
    runs = _runs(report)
    ends, _ = loss_range(report)
    panel = _loss_panel("train loss (nats a token)", report, ends, sum(len(phase.curve) for phase in report.phases))
    for phase in report.phases:
        series = _series(phase, runs)
        panel.line(series, phase.curve.consumed_tokens, phase.curve.loss, name=phase.name, smooth=True)
        if not phase.is_main:
            tip = f"{phase.name}, final loss: {phase.final_loss:.3f}"
            panel.points(series, [phase.consumed_tokens], [phase.final_loss], [tip], size=5)
    return figure([panel], caption, legend=runs, has_scale=True)


def loss_range(report: Report) -> tuple[Extent, float]:
    """Return the loss axis, and the tokens before which losses above it are cut off."""
    end = report.main_line[-1].consumed_tokens
    curves = [phase.curve for phase in report.phases]
    ends = around(np.concatenate([settled(curve.consumed_tokens, curve.loss, end) for curve in curves]))
    first = report.main_line[0].curve
    above = np.flatnonzero(first.loss > ends.high)
    return ends, float(first.consumed_tokens[above[-1]]) if len(above) else 0.0


def source_losses(report: Report, caption: str) -> Markup:
    """Return the loss of each source over the tokens of the main line; a gap is a phase that did not draw it."""
    series = series_of([curve.source for curve in report.source_curves])
    pieces = [(curve.source, piece) for curve in report.source_curves for piece in _pieces(report, curve)]
    end = float(report.main_line[-1].consumed_tokens)
    ends = around(np.concatenate([settled(*piece, end) for _, piece in pieces]))
    num_points = sum(len(tokens) for _, (tokens, _) in pieces)
    panel = _loss_panel("train loss by source (nats a token)", report, ends, num_points)
    for source, (tokens, values) in pieces:
        panel.line(series[source], tokens, values, smooth=True)
    return figure([panel], caption, legend=series, has_scale=True)


def _runs(report: Report) -> dict[str, Series]:
    return main_and_branches([phase.name for phase in report.branches])


def _series(phase: Phase, runs: Mapping[str, Series]) -> Series:
    return next(iter(runs.values())) if phase.is_main else runs[phase.name]


def _loss_panel(title: str, report: Report, ends: Extent, num_points: int) -> Panel:
    return Panel(title, token_range(report), ends, height=340, x_title="tokens", num_points=num_points)


def _sources_of(stretches: Sequence[MixtureStretch]) -> dict[str, Series]:
    """Return the sources as they are stacked: earlier ones below, larger ones first among those that begin together."""
    order: list[str] = []
    for stretch in stretches:
        new = [source for source in stretch.shares if source not in order]
        order += sorted(new, key=lambda source: (-stretch.shares[source], source))
    return series_of(order)


def _phases(report: Report, runs: Mapping[str, Series], x: Extent) -> Panel:
    panel = Panel("phases", x, [phase.name for phase in report.phases])
    panel.plot.min_border_left = 58  # as the panels below it
    for phase in report.phases:
        tip = (
            f"{phase.name}: {tokens_label(phase.start_tokens)} to {tokens_label(phase.consumed_tokens)} tokens, "
            f"steps {phase.start_step + 1:,} to {phase.step:,}"
        )
        tip += f", from {phase.parent}" if phase.parent else ""
        panel.bars(_series(phase, runs), [phase.name], [phase.start_tokens], [phase.consumed_tokens], [tip])
    end = report.main_line[-1].consumed_tokens
    panel.names_inside({phase.name: _name_place(phase, end) for phase in report.phases})
    return panel


def _name_place(phase: Phase, end: float) -> tuple[float, Literal["left", "right"]]:
    """Return where the name of a phase stands: behind its bar, else before it, else on it."""
    if phase.consumed_tokens <= 0.6 * end:
        return phase.consumed_tokens, "left"
    return phase.start_tokens, "right" if phase.start_tokens >= 0.25 * end else "left"


def _rates(report: Report, runs: Mapping[str, Series], x: Extent) -> Panel:
    found = [(phase, phase.curve.learning_rate > 0) for phase in report.phases]
    # The first step of a warm-up has rate 0, which no log scale holds.
    rates = np.concatenate([phase.curve.learning_rate[rows] for phase, rows in found])
    low, high = (float(rates.min()), float(rates.max())) if len(rates) else (_NO_RATE, _NO_RATE)
    panel = Panel(
        "learning rate (log scale)", x, Extent(low / 1.4, high * 1.4), height=200, y_scale="log",
        value_format="0.000e+0", num_points=sum(len(phase.curve) for phase in report.phases),
    )  # fmt: skip
    for phase, rows in found:
        if rows.any():
            curve = phase.curve
            panel.line(_series(phase, runs), curve.consumed_tokens[rows], curve.learning_rate[rows], name=phase.name)
    return panel


def _batches(report: Report, runs: Mapping[str, Series], x: Extent) -> Panel:
    most = max(int(phase.curve.global_batch_size.max()) for phase in report.main_line)
    panel = Panel("batch size (sequences a step)", x, Extent(0, most * 1.1), height=150)
    for phase in report.main_line:
        tokens = np.concatenate([[phase.start_tokens], phase.curve.consumed_tokens])
        sizes = phase.curve.global_batch_size
        panel.line(_series(phase, runs), tokens, np.concatenate([sizes[:1], sizes]), name=phase.name)
    return panel


def _mixture(stretches: Sequence[MixtureStretch], sources: Mapping[str, Series], x: Extent) -> Panel:
    panel = Panel(
        "mixture (share of sequences by source)", x, Extent(0, 1), height=280, y_format="0%", x_title="tokens"
    )
    below = [0.0] * len(stretches)
    for source, series in sources.items():
        boxes, tips = [], []
        for index, stretch in enumerate(stretches):
            if share := stretch.shares.get(source, 0.0):
                boxes.append((stretch.low, stretch.high, below[index], below[index] + share))
                tokens = f"{tokens_label(stretch.low)} to {tokens_label(stretch.high)} tokens"
                tips.append(f"{source}: {share:.2%} of sequences, {tokens}")
                below[index] += share
        if boxes:
            panel.areas(series, boxes, tips)
    return panel


def _pieces(report: Report, curve: SourceCurve) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return tokens and losses of a source, phase by phase: where a phase does not draw it, there is no line."""
    pieces = []
    for phase in report.main_line:
        rows = (curve.step > phase.start_step) & (curve.step <= phase.step)
        if rows.any():
            tokens = np.interp(curve.step[rows], phase.curve.step, phase.curve.consumed_tokens)
            pieces.append((tokens, curve.loss[rows]))
    return pieces
