"""Plots of the run over tokens: its settings (timeline) and its loss."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from runtime.report.contents import Phase, Report
from runtime.report.markup import Markup, element, joined
from runtime.report.plots import (
    TEXT_SIZE,
    Band,
    Frame,
    band_name_rows,
    band_names,
    bands,
    binned,
    colour_of,
    drawing,
    envelope,
    extremes,
    horizontal_ticks,
    line,
    rounded_up,
    settled,
    straight,
    text,
    token_axis,
    tokens_tip,
    y_axis,
)
from runtime.report.scales import Scale, fitted, padded, text_width, tokens_label

_BRANCH_ROW = 15.0
_NO_RATE = 1e-3
"""Axis of a run in which no training step had a rate above 0."""


@dataclasses.dataclass(frozen=True)
class MixtureStretch:
    """Tokens during which the shares are the same."""

    low: float
    high: float
    shares: Mapping[str, float]


def main_bands(report: Report) -> list[Band]:
    """Return the main line as stretches of tokens."""
    found = []
    for phase in report.main_line:
        tip = (
            f"{phase.name}: {tokens_tip(phase.start_tokens, phase.consumed_tokens)}, "
            f"steps {phase.start_step + 1:,} to {phase.step:,}, final loss {phase.final_loss:.3f}"
        )
        found.append(Band(phase.name, phase.start_tokens, phase.consumed_tokens, tip))
    return found


def margins(width: float) -> tuple[float, float]:
    """Room left and right of the panels."""
    return (58, 14) if width > 600 else (46, 8)


def _names_height(report: Report, width: float) -> float:
    left, right = margins(width)
    end = report.main_line[-1].consumed_tokens
    spans = [(band.name, band.low / end, band.high / end) for band in main_bands(report)]
    return 15 * band_name_rows(width - left - right, spans) + 6


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


def source_style(index: int) -> str:
    """Fill of a source: eight colours, each in four strengths; the recipe at full size has 25 sources."""
    return f"fill:{colour_of(index)};fill-opacity:var(--a{index // 8 % 4})"


def _mixture_panel(frame: Frame, stretches: Sequence[MixtureStretch]) -> Markup:
    order = sources_in_order(stretches)
    parts: list[str] = []
    largest: dict[str, tuple[float, float, float]] = {}
    for stretch in stretches:
        below = 0.0
        low, high = frame.x(stretch.low), frame.x(stretch.high)
        for index, source in enumerate(order):
            share = stretch.shares.get(source, 0.0)
            if not share:
                continue
            top, bottom = frame.y(below + share), frame.y(below)
            tip = f"{source}: {share:.2%} of sequences, {tokens_tip(stretch.low, stretch.high)}"
            shape = {"x": low, "y": top, "width": high - low, "height": bottom - top}
            parts.append(element("rect", class_="area", style=source_style(index), data_tip=tip, **shape))
            fits = bottom - top >= TEXT_SIZE + 3 and high - low >= text_width(source, TEXT_SIZE) + 8
            if fits and (high - low) * (bottom - top) > largest.get(source, (0, 0, 0))[0]:
                largest[source] = ((high - low) * (bottom - top), (low + high) / 2, (top + bottom) / 2)
            below += share
    for source, (_, x, y) in largest.items():
        parts.append(text(source, x, y + 3.8, "middle", "on-area" if order.index(source) < 8 else "on-area pale"))
    return joined(parts)


def _branch_rows(frame: Frame, report: Report, top: float) -> Markup:
    """Branches as bars off the main line, one row each, named beside the bar."""
    row_of = {phase.name: -1 for phase in report.main_line}
    end_of = {phase.name: float(phase.consumed_tokens) for phase in report.phases}
    parts: list[str] = []
    for row, phase in enumerate(report.branches):
        row_of[phase.name] = row
        y = top + row * _BRANCH_ROW + _BRANCH_ROW / 2
        low, high = frame.x(phase.start_tokens), frame.x(min(phase.consumed_tokens, frame.x.high))
        from_row = row_of.get(phase.parent or "", -1)
        from_y = top + from_row * _BRANCH_ROW + _BRANCH_ROW / 2 if from_row >= 0 else top - 3
        parts.append(straight(low, from_y, low, y, "stem"))
        tip = f"{phase.name}: from {phase.parent}, {tokens_tip(phase.start_tokens, end_of[phase.name])}"
        bar = {"x": low, "y": y - 3.5, "width": max(high - low, 2.5), "height": 7.0, "rx": 1.5}
        parts.append(element("rect", class_="branch-bar", data_tip=tip, **bar))
        after, before = max(high, low + 2.5) + 6, low - 6
        if after + text_width(phase.name, TEXT_SIZE) <= frame.right or frame.right - after > before:
            parts.append(text(fitted(phase.name, frame.right - after, TEXT_SIZE), after, y + 3.8, class_="name"))
        else:
            parts.append(text(fitted(phase.name, before, TEXT_SIZE), before, y + 3.8, "end", "name"))
    return joined(parts)


def timeline(report: Report, width: float) -> Markup:
    """Phases and branches, learning rate, batch size and mixture above one token axis."""
    left, right = margins(width)
    end = report.main_line[-1].consumed_tokens
    across = Scale(0, end, left, width - right)
    phases = main_bands(report)
    names = _names_height(report, width)
    bars_top = names + 2
    branches_top = bars_top + 17
    y = branches_top + len(report.branches) * _BRANCH_ROW
    parts: list[str] = []

    rates = [found for phase in report.phases if (found := (phase, *_positive_rates(phase)))[2].size]
    lowest = min((float(values.min()) for _, _, values in rates), default=_NO_RATE)
    highest = max((float(values.max()) for _, _, values in rates), default=_NO_RATE)
    rate_frame = Frame(across, Scale(lowest / 1.4, highest * 1.4, y + 160, y + 34, "log"))
    batch_top = rate_frame.bottom + 34
    most = max(int(phase.curve.global_batch_size.max()) for phase in report.main_line)
    batch_frame = Frame(across, Scale(0, rounded_up(most * 1.25), batch_top + 60, batch_top))
    mixture_top = batch_frame.bottom + 34
    mixture_frame = Frame(across, Scale(0, 1, mixture_top + 250, mixture_top))

    for frame in (rate_frame, batch_frame):
        parts.append(bands(frame, phases))
    name_frame = Frame(across, Scale(0, 1, bars_top, 0))
    parts.append(band_names(name_frame, phases, bars_top)[0])
    for index, band in enumerate(phases):
        low, high = across(band.low), across(band.high)
        shape = {"x": low + 0.5, "y": bars_top, "width": max(high - low - 1, 1), "height": 14.0}
        parts.append(
            element("rect", class_="main-bar odd" if index % 2 else "main-bar", rx=1.5, data_tip=band.tip, **shape)
        )
    parts.append(_branch_rows(Frame(across, Scale(0, 1, y, branches_top)), report, branches_top))
    parts.append(y_axis(rate_frame, "learning rate (log scale)", 5))
    for phase, tokens, values in sorted(rates, key=lambda found: found[0].is_main):
        xs, ys = extremes(tokens, values, int(width))
        parts.append(line(rate_frame, xs, ys, "line main" if phase.is_main else "line branch"))
    parts.append(text("batch size (sequences a step)", 2, batch_frame.top - 8, class_="title"))
    parts.append(_batch_panel(batch_frame, report))
    parts.append(horizontal_ticks(mixture_frame, [0, 0.5, 1], ["0", "50 %", "100 %"]))
    parts.append(text("mixture (share of sequences by source)", 2, mixture_frame.top - 8, class_="title"))
    parts.append(_mixture_panel(mixture_frame, mixture_stretches(report.main_line)))
    parts.append(token_axis(mixture_frame))
    counts = f"{len(report.main_line)} phases and {len(report.branches)} branches"
    described = f"Timeline of {counts} over {tokens_label(end)} tokens"
    return drawing(width, mixture_frame.bottom + 38, described, *parts)


def _positive_rates(phase: Phase) -> tuple[np.ndarray, np.ndarray]:
    # The first step of a warm-up has rate 0, which no log scale holds.
    positive = phase.curve.learning_rate > 0
    return phase.curve.consumed_tokens[positive], phase.curve.learning_rate[positive]


def _batch_panel(frame: Frame, report: Report) -> Markup:
    xs: list[float] = []
    ys: list[float] = []
    parts: list[str] = []
    for phase in report.main_line:
        starts = np.concatenate([[phase.start_tokens], phase.curve.consumed_tokens[:-1]])
        for row in np.flatnonzero(np.diff(phase.curve.global_batch_size, prepend=-1)):
            size = int(phase.curve.global_batch_size[row])
            if ys and ys[-1] == size:
                continue
            if ys:
                xs, ys = [*xs, float(starts[row])], [*ys, ys[-1]]
            xs, ys = [*xs, float(starts[row])], [*ys, size]
            parts.append(text(f"{size:,}", frame.x(float(starts[row])) + 4, frame.y(size) - 5, class_="name"))
    xs, ys = [*xs, float(report.main_line[-1].consumed_tokens)], [*ys, ys[-1]]
    axis = horizontal_ticks(frame, [0], ["0"])
    return joined([axis, line(frame, xs, ys, "line main"), *parts])


def loss_range(report: Report) -> tuple[float, float, float]:
    """Return ends of the loss axis, and the tokens before which losses above it are cut off."""
    end = report.main_line[-1].consumed_tokens
    curves = [phase.curve for phase in report.phases]
    values = np.concatenate([settled(curve.consumed_tokens, curve.loss, end) for curve in curves])
    low, high = padded([float(values.min()), float(values.max())])
    first = report.main_line[0].curve
    above = np.flatnonzero(first.loss > high)
    return low, high, float(first.consumed_tokens[above[-1]]) if len(above) else 0.0


def loss(report: Report, width: float) -> Markup:
    """Train loss of the main line, with the branches off it."""
    left, right = margins(width)
    names = _names_height(report, width)
    low, high, _ = loss_range(report)
    end = report.main_line[-1].consumed_tokens
    top = names + 24
    frame = Frame(Scale(0, end, left, width - right), Scale(low, high, top + (300 if width > 600 else 240), top))
    phases = main_bands(report)
    parts: list[str] = [
        bands(frame, phases, top - 18),
        band_names(frame, phases, top - 18)[0],
        y_axis(frame, "train loss (nats a token)", 7),
    ]
    pixels = frame.right - frame.left
    for phase in (*report.branches, *report.main_line):
        share = (phase.consumed_tokens - phase.start_tokens) / end
        xs, means, lows, highs = binned(phase.curve.consumed_tokens, phase.curve.loss, max(6, int(share * pixels / 2)))
        if phase.is_main:
            parts.append(envelope(frame, xs, lows, highs, "envelope"))
        parts.append(line(frame, xs, means, "line main" if phase.is_main else "line branch"))
    parts.append(token_axis(frame))
    return drawing(width, frame.bottom + 38, f"Train loss over {tokens_label(end)} tokens", *parts)
