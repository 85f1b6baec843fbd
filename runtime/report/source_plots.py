"""Train loss by source: a panel each, on one axis, so that both a level and a turn are seen."""

import numpy as np

from runtime.report.contents import Report, SourceCurve
from runtime.report.markup import Markup, joined
from runtime.report.plots import (
    TEXT_SIZE,
    Frame,
    bands,
    binned,
    drawing,
    line,
    point,
    settled,
    text,
    token_axis,
    y_axis,
)
from runtime.report.run_plots import main_bands, margins
from runtime.report.scales import Scale, fitted, padded, tokens_label

_MOST_COLUMNS = 4
_BINS = 60


def source_losses(report: Report, width: float) -> Markup:
    """Return a panel a source, over the tokens of the whole main line; a gap is a stretch in which it was not drawn."""
    curves = report.source_curves
    end = float(report.main_line[-1].consumed_tokens)
    columns = 1 if width < 600 else min(_MOST_COLUMNS, len(curves))
    left, _ = margins(0 if columns > 1 else width)
    cell_width = (width + 10) / columns
    panel_height, cell_height = (120.0, 190.0) if columns > 1 else (150.0, 222.0)
    drawn = {curve.source: _pieces(report, curve) for curve in curves}
    pieces = [piece for of_source in drawn.values() for piece in of_source]
    every = np.concatenate([means for _, means in pieces])
    behind = np.concatenate([settled(tokens, means, end) for tokens, means in pieces])
    low, high = padded((behind if len(behind) else every).tolist())
    parts: list[str] = []
    for index, curve in enumerate(curves):
        x, top = (index % columns) * cell_width, (index // columns) * cell_height + 26
        frame = Frame(Scale(0, end, x + left, x + cell_width - 18), Scale(low, high, top + panel_height, top))
        panel: list[str] = [bands(frame, main_bands(report)), y_axis(frame, "", 4)]
        name = fitted(curve.source, (frame.right - frame.left - 36) / 1.1, TEXT_SIZE)  # in bold, and a figure behind it
        panel.append(text(name, frame.left, frame.top - 8, class_="panel"))
        last = None
        for tokens, means in drawn[curve.source]:
            inside = means <= high
            if inside.any():
                panel.append(line(frame, tokens[inside], means[inside], "line main"))
                last = float(tokens[inside][-1]), float(means[inside][-1])
        if last is not None:
            tip = f"{curve.source}, at {tokens_label(last[0])} tokens: {last[1]:.3f}"
            panel.append(point(frame.x(last[0]), frame.y(last[1]), tip, "dot main", radius=3))
            panel.append(text(f"{last[1]:.2f}", frame.right, frame.top - 8, "end"))
        panel.append(token_axis(frame, "tokens consumed", max(3, int((frame.right - frame.left) / 70))))
        parts.append(joined(panel))
    rows = -(-len(curves) // columns)
    return drawing(width, rows * cell_height, f"Train loss of {len(curves)} sources", *parts)


def _pieces(report: Report, curve: SourceCurve) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return tokens and mean losses of a source, phase by phase: where a phase does not draw it, there is no line."""
    pieces = []
    whole = float(report.main_line[-1].consumed_tokens)
    for phase in report.main_line:
        rows = (curve.step > phase.start_step) & (curve.step <= phase.step)
        if not rows.any():
            continue
        tokens = np.interp(curve.step[rows], phase.curve.step, phase.curve.consumed_tokens)
        share = (phase.consumed_tokens - phase.start_tokens) / whole
        xs, means, _, _ = binned(tokens, curve.loss[rows], max(2, round(_BINS * share)))
        pieces.append((xs, means))
    return pieces
