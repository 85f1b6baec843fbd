"""Panels of branches: each branch beside the main line over the same tokens."""

from collections.abc import Sequence

import numpy as np

from runtime.report.contents import Phase, Report
from runtime.report.markup import Markup, joined
from runtime.report.plots import TEXT_SIZE, Frame, binned, drawing, line, point, text, token_axis, y_axis
from runtime.report.run_plots import margins
from runtime.report.scales import Scale, fitted, padded, text_width

_MOST_COLUMNS = 4
_BINS = 24
"""Bins over the longest branch; a short branch is compared by its level, not by its noise."""


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


def twins(phases: Sequence[Phase]) -> list[str]:
    """Return a sentence for each training that has several names."""
    names: dict[str, list[str]] = {}
    for phase in phases:
        if phase.same_as is not None:
            names.setdefault(phase.same_as, []).append(phase.name)
    return [f"{_listed(others)} {_are(others)} the same training as {name}." for name, others in names.items()]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def branch_loss(report: Report, root: Phase, branches: Sequence[Phase], width: float) -> Markup:
    """Return a panel a branch: its train loss since `root`, the way to it, and the main line over the same stretch."""
    shown = [phase for phase in branches if phase.same_as is None]
    by_name = {phase.name: phase for phase in report.phases}
    start = root.consumed_tokens
    length = max(phase.consumed_tokens for phase in shown) - start
    successor = next((phase for phase in report.main_line if phase.parent == root.name), None)
    columns = 1 if width < 600 else min(_MOST_COLUMNS, len(shown))
    left, _ = margins(0 if columns > 1 else width)
    cell_width = (width + 10) / columns
    panel_height, cell_height = (150.0, 226.0) if columns > 1 else (170.0, 246.0)

    lines = {phase.name: _smoothed(phase, start, length) for phase in shown}
    main = _smoothed(successor, start, length) if successor else None
    drawn = [*lines.values(), *([main] if main else [])]
    final = [phase.final_loss for phase in shown]
    low, high = padded([*final, *(float(value) for _, means in drawn for value in means)])
    parts: list[str] = []
    for index, phase in enumerate(shown):
        x, top = (index % columns) * cell_width, (index // columns) * cell_height + 26
        frame = Frame(Scale(0, length, x + left, x + cell_width - 18), Scale(low, high, top + panel_height, top))
        across = frame.right - frame.left
        name = fitted(phase.name, across / 1.1, TEXT_SIZE)  # in bold
        panel: list[str] = [y_axis(frame, "", 5), text(name, frame.left, frame.top - 8, class_="panel")]
        if main:
            panel.append(line(frame, *main, "line main"))
        above = by_name.get(phase.parent or "")
        while above is not None and not above.is_main:
            panel.append(line(frame, *_smoothed(above, start, length), "line branch faint"))
            above = by_name.get(above.parent or "")
        xs, means = lines[phase.name]
        panel.append(line(frame, xs, means, "line branch strong"))
        # The dot stands at the final loss, a mean over another number of steps than the last bin.
        at = frame.x(float(xs[-1])), frame.y(phase.final_loss)
        panel.append(point(*at, f"{phase.name}, final loss: {phase.final_loss:.3f}", "dot branch", radius=3))
        summary_text = f"{phase.final_loss:.3f}"
        if frame.left + text_width(name, TEXT_SIZE) * 1.1 + text_width(summary_text, TEXT_SIZE) + 8 < frame.right:
            panel.append(text(summary_text, frame.right, frame.top - 8, "end"))
        few = max(3, int(across / 70))
        panel.append(token_axis(frame, f"tokens since {fitted(root.name, across - 70, TEXT_SIZE)}", few))
        parts.append(joined(panel))
    rows = -(-len(shown) // columns)
    return drawing(width, rows * cell_height, f"Train loss of {len(shown)} branches of {root.name}", *parts)


def _smoothed(phase: Phase, start: float, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens since `start` and mean losses within `length`, in bins of about one width for all branches."""
    tokens = phase.curve.consumed_tokens - start
    rows = tokens <= length
    share = (float(tokens[rows][-1]) - (phase.start_tokens - start)) / length if rows.any() else 0.0
    xs, means, _, _ = (
        binned(tokens[rows], phase.curve.loss[rows], max(3, round(_BINS * share)))
        if rows.any()
        else ((np.empty(0),) * 4)
    )
    return xs, means
