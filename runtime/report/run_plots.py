"""Figures of the run over tokens: its settings (timeline), its loss, and its branches beside it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from runtime.report.contents import Phase, Report, SourceCurve
from runtime.report.figures import figure
from runtime.report.labels import tokens_label
from runtime.report.markup import Markup
from runtime.report.panel import TOKENS, Extent, Panel, Series, around, main_and_branches, series_of, settled

_NO_RATE = 1e-3
"""Axis of a run in which no training step had a rate above 0."""
_MAIN = "main line"


@dataclasses.dataclass(frozen=True)
class MixtureStretch:
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


def sources_in_order(stretches: Sequence[MixtureStretch]) -> list[str]:
    """Sources as they are stacked: earlier ones below, larger ones first among those that begin together."""
    order: list[str] = []
    for stretch in stretches:
        new = [source for source in stretch.shares if source not in order]
        order += sorted(new, key=lambda source: (-stretch.shares[source], source))
    return order


def timeline(report: Report, caption: str) -> Markup:
    """Return phases, learning rate, batch size and mixture above one token axis."""
    runs = _runs(report)
    stretches = mixture_stretches(report.main_line)
    sources = series_of(sources_in_order(stretches))
    x = token_range(report)
    panels = [_phases(report, runs, x), _rates(report, runs, x), _batches(report, runs[_MAIN], x)]
    panels += [_mixture(stretches, sources, x)] if stretches else []
    legend = runs | {name: series for name, series in sources.items() if name not in runs}
    return figure(panels, caption, legend=legend)


def loss(report: Report, caption: str) -> Markup:
    """Return the train loss of the main line, with the branches off it."""
    runs = _runs(report)
    low, high, _ = loss_range(report)
    panel = Panel(
        "train loss (nats a token)",
        token_range(report),
        Extent(low, high),
        height=340,
        x_title="tokens",
        num_points=_num_steps(report.phases),
    )
    _add_main_line(panel, report, runs[_MAIN])
    for phase in report.branches:
        panel.line(runs[phase.name], phase.curve.consumed_tokens, phase.curve.loss, smooth=True)
    return figure([panel], caption, legend=runs, has_scale=True)


def loss_range(report: Report) -> tuple[float, float, float]:
    """Return ends of the loss axis, and the tokens before which losses above it are cut off."""
    end = report.main_line[-1].consumed_tokens
    curves = [phase.curve for phase in report.phases]
    ends = around(np.concatenate([settled(curve.consumed_tokens, curve.loss, end) for curve in curves]))
    first = report.main_line[0].curve
    above = np.flatnonzero(first.loss > ends.high)
    return ends.low, ends.high, float(first.consumed_tokens[above[-1]]) if len(above) else 0.0


def source_losses(report: Report, caption: str) -> Markup:
    """Return the loss of each source over the tokens of the main line; a gap is a phase that did not draw it."""
    series = series_of([curve.source for curve in report.source_curves])
    pieces = [(curve.source, piece) for curve in report.source_curves for piece in _pieces(report, curve)]
    end = float(report.main_line[-1].consumed_tokens)
    ends = around(np.concatenate([settled(*piece, end) for _, piece in pieces]))
    panel = Panel(
        "train loss by source (nats a token)",
        token_range(report),
        ends,
        height=320,
        x_title="tokens",
        num_points=sum(len(tokens) for _, (tokens, _) in pieces),
    )
    for source, (tokens, values) in pieces:
        panel.line(series[source], tokens, values, smooth=True)
    return figure([panel], caption, legend=series, has_scale=True)


def branch_groups(report: Report) -> list[tuple[Phase, list[Phase]]]:
    """Return the branches by the phase of the main line that they leave, directly or through another branch."""
    by_name = {phase.name: phase for phase in report.phases}

    def root(phase: Phase) -> Phase | None:
        parent = by_name.get(phase.parent or "")
        return parent if parent is None or parent.is_main else root(parent)

    groups: dict[str, list[Phase]] = {}
    for phase in report.branches:
        found = root(phase)
        groups.setdefault(found.name if found else "", []).append(phase)
    return [(by_name[name], branches) for name, branches in groups.items() if name]


def branch_loss(report: Report, root: Phase, branches: Sequence[Phase], caption: str) -> Markup:
    """Return the loss of branches and of the main line over the same tokens; a mark is a final loss."""
    shown = [phase for phase in branches if phase.same_as is None]
    runs = main_and_branches([phase.name for phase in shown])
    start, end = float(root.consumed_tokens), float(max(phase.consumed_tokens for phase in shown))
    curves = [phase.curve for phase in report.main_line]
    tokens = np.concatenate([curve.consumed_tokens for curve in curves])
    values = np.concatenate([curve.loss for curve in curves])
    inside = (tokens > start) & (tokens <= end)
    every = [values[inside], *(phase.curve.loss for phase in shown), np.array([phase.final_loss for phase in shown])]
    ends = around(np.concatenate(every))
    title = f"train loss after {root.name} (nats a token)"
    panel = Panel(
        title, Extent(start, end), ends, height=300, x_title="tokens", num_points=int(inside.sum()) + _num_steps(shown)
    )
    if inside.any():
        panel.line(runs[_MAIN], tokens[inside], values[inside], smooth=True)
    for phase in shown:
        panel.line(runs[phase.name], phase.curve.consumed_tokens, phase.curve.loss, smooth=True)
        tip = f"{phase.name}, final loss: {phase.final_loss:.3f}"
        panel.points(runs[phase.name], [phase.consumed_tokens], [phase.final_loss], [tip])
    return figure([panel], caption, legend=runs, has_scale=True)


def twins(phases: Sequence[Phase]) -> list[str]:
    """Return a sentence for each training that has several names."""
    names: dict[str, list[str]] = {}
    for phase in phases:
        if phase.same_as is not None:
            names.setdefault(phase.same_as, []).append(phase.name)
    return [f"{_subject(others)} the same training as {name}." for name, others in names.items()]


def _subject(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"


def _num_steps(phases: Sequence[Phase]) -> int:
    return sum(len(phase.curve) for phase in phases)


def _runs(report: Report) -> dict[str, Series]:
    return main_and_branches([phase.name for phase in report.branches])


def _add_main_line(panel: Panel, report: Report, series: Series) -> None:
    for phase in report.main_line:
        panel.line(series, phase.curve.consumed_tokens, phase.curve.loss, name=phase.name, smooth=True)


def _phases(report: Report, runs: Mapping[str, Series], x: Extent) -> Panel:
    panel = Panel("phases", x, [phase.name for phase in report.phases])
    panel.plot.min_border_left = 58  # as the panels below it
    for phase in report.phases:
        series = runs[_MAIN if phase.is_main else phase.name]
        tip = (
            f"{phase.name}: {tokens_label(phase.start_tokens)} to {tokens_label(phase.consumed_tokens)} tokens, "
            f"steps {phase.start_step + 1:,} to {phase.step:,}"
        )
        tip += f", from {phase.parent}" if phase.parent else ""
        panel.bars(series, [phase.name], [phase.start_tokens], [phase.consumed_tokens], [tip])
    end = report.main_line[-1].consumed_tokens
    panel.names_inside({phase.name: _name_place(phase, end) for phase in report.phases})
    return panel


def _name_place(phase: Phase, end: float) -> tuple[float, Literal["left", "right"]]:
    """Return where the name of a phase stands: behind its bar, else before it, else on it."""
    if phase.consumed_tokens <= 0.6 * end:
        return phase.consumed_tokens, "left"
    return (phase.start_tokens, "right") if phase.start_tokens >= 0.25 * end else (phase.start_tokens, "left")


def _rates(report: Report, runs: Mapping[str, Series], x: Extent) -> Panel:
    found = [(phase, phase.curve.learning_rate > 0) for phase in report.phases]
    # The first step of a warm-up has rate 0, which no log scale holds.
    rates = np.concatenate([phase.curve.learning_rate[rows] for phase, rows in found] + [[]])
    low, high = (float(rates.min()), float(rates.max())) if len(rates) else (_NO_RATE, _NO_RATE)
    y = Extent(low / 1.4, high * 1.4)
    panel = Panel(
        "learning rate (log scale)",
        x,
        y,
        height=200,
        y_scale="log",
        value_format="0.000e+0",
        num_points=_num_steps(report.phases),
    )
    for phase, rows in found:
        if rows.any():
            series = runs[_MAIN if phase.is_main else phase.name]
            panel.line(series, phase.curve.consumed_tokens[rows], phase.curve.learning_rate[rows], name=phase.name)
    return panel


def _batches(report: Report, series: Series, x: Extent) -> Panel:
    most = max(int(phase.curve.global_batch_size.max()) for phase in report.main_line)
    panel = Panel("batch size (sequences a step)", x, Extent(0, most * 1.1), height=150)
    for phase in report.main_line:
        sizes = phase.curve.global_batch_size
        panel.line(
            series,
            np.concatenate([[phase.start_tokens], phase.curve.consumed_tokens]),
            np.concatenate([sizes[:1], sizes]),
            name=phase.name,
        )
    return panel


def _mixture(stretches: Sequence[MixtureStretch], sources: Mapping[str, Series], x: Extent) -> Panel:
    panel = Panel(
        "mixture (share of sequences by source)", x, Extent(0, 1), height=280, y_format="0%", x_title="tokens"
    )
    boxes: dict[str, list[tuple[float, float, float, float]]] = {source: [] for source in sources}
    tips: dict[str, list[str]] = {source: [] for source in sources}
    for stretch in stretches:
        below = 0.0
        for source in sources:
            share = stretch.shares.get(source, 0.0)
            if share:
                boxes[source].append((stretch.low, stretch.high, below, below + share))
                tokens = f"{tokens_label(stretch.low)} to {tokens_label(stretch.high)} tokens"
                tips[source].append(f"{source}: {share:.2%} of sequences, {tokens}")
                below += share
    for source, series in sources.items():
        if boxes[source]:
            panel.areas(series, boxes[source], tips[source])
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
