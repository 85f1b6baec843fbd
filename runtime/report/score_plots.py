"""Plots of results: weights and averages, bits per byte by domain, scores, kept documents."""

from collections.abc import Mapping, Sequence

from runtime.report.contents import Evaluation, Report, Score, Stage, leading, mean
from runtime.report.markup import Markup, element, joined
from runtime.report.plots import (
    TEXT_SIZE,
    Frame,
    bands,
    drawing,
    line,
    name_column,
    point,
    square,
    straight,
    text,
    token_axis,
    y_axis,
)
from runtime.report.run_plots import main_bands, margins
from runtime.report.scales import Scale, counted, fitted, padded, text_width, tick_labels, tokens_label

_ROW = 20.0
_CONFIDENCE = 1.96
"""Standard errors on either side of a score that hold the truth 19 times in 20."""


def value_axis(frame: Frame, title: str, at_most: int) -> Markup:
    """Return grid and labels of an x axis that is not tokens."""
    ticks = frame.x.ticks(at_most)
    parts: list[str] = []
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        x = frame.x(tick)
        parts.append(straight(x, frame.top, x, frame.bottom, "grid"))
        parts.append(text(label, x, frame.bottom + 15, "middle"))
    parts.append(text(title, frame.right, frame.bottom + 31, "end", "title"))
    return joined(parts)


def gaps(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return by how much each average is better in bits per byte, by domain; empty without averages."""
    return {
        name: {domain: evaluation.hot[domain] - values[domain] for domain in sorted(evaluation.hot)}
        for name, values in evaluation.averages.items()
    }


def average_gap(report: Report, width: float) -> Markup:
    """Return a row for each average of each phase: the gap in each domain, and the mean."""
    found = {evaluation.phase: gaps(evaluation) for evaluation in report.evaluations}
    phases = [phase for phase in (*report.main_line, *report.branches) if phase.name in found]
    values = [value for by_name in found.values() for gap in by_name.values() for value in gap.values()]
    rows = [(phase, name) for phase in phases for name in (found[phase.name] if phase.same_as is None else {}) or [""]]
    labels = [f"{phase.name}, {name}" if len(found[phase.name]) > 1 and name else phase.name for phase, name in rows]
    left = name_column(labels, width)
    low, high = padded([0.0, *values], least=0.001)
    split = sum(phase.is_main for phase, _ in rows)
    extra = 10 if 0 < split < len(rows) else 0
    frame = Frame(Scale(low, high, left, width - 14), Scale(0, 1, 8 + _ROW * len(rows) + extra, 8))
    parts: list[str] = [value_axis(frame, "weights minus EMA weights, bits per byte", 8 if width > 600 else 5)]
    parts.append(straight(frame.x(0), frame.top, frame.x(0), frame.bottom, "zero"))
    for row, ((phase, name), label) in enumerate(zip(rows, labels, strict=True)):
        y = frame.top + _ROW * (row + 0.5) + (extra if row >= split else 0)
        parts.append(text(fitted(label, left - 10, TEXT_SIZE), left - 8, y + 3.8, "end", "name"))
        if phase.same_as is not None:
            room = frame.right - frame.x(0) - 8
            summary_text = f"the same training as {phase.same_as}"
            summary_text = summary_text if text_width(summary_text, TEXT_SIZE) <= room else f"as {phase.same_as}"
            parts.append(text(summary_text, frame.x(0) + 8, y + 3.8, class_="quiet"))
            continue
        if not name:
            parts.append(text("keeps no average", frame.x(0) + 8, y + 3.8, class_="quiet"))
            continue
        gap = found[phase.name][name]
        for domain, value in gap.items():
            parts.append(point(frame.x(value), y, f"{label}, {domain}: {value:+.4f}", "dot faint", radius=3))
        middle = mean(gap)
        kind = "main" if phase.is_main else "branch"
        tip = f"{label}, mean of {len(gap)} domains: {middle:+.4f}"
        parts.append(straight(frame.x(0), y, frame.x(middle), y, f"bar {kind}"))
        parts.append(point(frame.x(middle), y, tip, f"dot {kind}", radius=5))
    return drawing(width, frame.bottom + 36, "Gap between weights and EMA weights by phase", *parts)


def domain_panels(report: Report, width: float) -> Markup:
    """Bits per byte over tokens, a panel a domain; every panel spans the same number of bits, so slopes compare."""
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    domains = report.domains
    columns = 1 if width < 600 else 4 if len(domains) > 6 or len(domains) == 4 else min(3, len(domains))
    cell_width = (width + 10) / columns
    panel_height, cell_height = (150.0, 222.0) if columns > 1 else (140.0, 212.0)
    bounds = {domain: padded(_all_values(report.evaluations, domain), 0.08) for domain in domains}
    span = max(high - low for low, high in bounds.values())
    end = report.main_line[-1].consumed_tokens
    parts: list[str] = []
    for index, domain in enumerate(domains):
        x, y = (index % columns) * cell_width, (index // columns) * cell_height
        left, _ = margins(0)
        middle = sum(bounds[domain]) / 2
        top = y + 26
        frame = Frame(
            Scale(0, end, x + left, x + cell_width - 18),
            Scale(middle - span / 2, middle + span / 2, top + panel_height, top),
        )
        parts.append(_domain_panel(frame, domain, report, found))
    rows = -(-len(domains) // columns)
    return drawing(width, rows * cell_height, f"Bits per byte of {len(domains)} domains over tokens", *parts)


def _all_values(evaluations: Sequence[Evaluation], domain: str) -> list[float]:
    sets = [values for evaluation in evaluations for values in (evaluation.hot, *evaluation.averages.values())]
    return [values[domain] for values in sets if domain in values]


def _domain_panel(frame: Frame, domain: str, report: Report, found: Mapping[str, Evaluation]) -> Markup:
    parts: list[str] = [bands(frame, main_bands(report)), y_axis(frame, "", 5)]
    parts.append(
        text(fitted(domain, (frame.right - frame.left) / 1.1, TEXT_SIZE), frame.left, frame.top - 8, class_="panel")
    )
    reached: dict[str, tuple[float, float]] = {}
    marks: list[str] = []
    for phase in report.phases:
        evaluation = found.get(phase.name)
        if evaluation is None or domain not in evaluation.best or phase.same_as is not None:
            continue
        kind = "main" if phase.is_main else "branch"
        tokens = float(phase.consumed_tokens)
        value = evaluation.best[domain]
        start = reached.get(phase.parent or "")
        if start:
            parts.append(line(frame, [start[0], tokens], [start[1], value], f"line {kind}"))
        reached[phase.name] = (tokens, value)
        at = f"{domain} after {phase.name} ({tokens_label(tokens)} tokens)"
        if not evaluation.averages:
            marks.append(
                point(frame.x(tokens), frame.y(value), f"{at}: weights {value:.4f}", f"ring {kind}", radius=3.5)
            )
            continue
        hot = evaluation.hot[domain]
        averaged = (f"{name} {values[domain]:.4f}" for name, values in evaluation.averages.items())
        tip = f"{at}: {', '.join(averaged)}, weights {hot:.4f}"
        if phase.is_main:
            _, *further = evaluation.averages.values()
            marks += [square(frame.x(tokens), frame.y(values[domain]), tip) for values in further]
            marks.append(straight(frame.x(tokens), frame.y(hot), frame.x(tokens), frame.y(value), f"stem {kind}"))
            marks.append(point(frame.x(tokens), frame.y(hot), tip, f"ring {kind}", radius=3))
        marks.append(point(frame.x(tokens), frame.y(value), tip, f"dot {kind}", radius=4 if phase.is_main else 2.5))
    few = max(3, int((frame.right - frame.left) / 70))
    return joined([*parts, *marks, token_axis(frame, "tokens consumed", few)])


def score_panels(report: Report, width: float) -> Markup:
    """Return a panel a task: each export's score with its 95 % interval, and what guessing would give."""
    shown = leading(report.scores)
    tasks = list(dict.fromkeys((score.label, score.metric) for score in shown))
    exports = list(dict.fromkeys(score.export for score in shown))
    columns = 1 if width < 600 else min(3, len(tasks))
    name_width = name_column(exports, 480)
    cell_width = (width - name_width) / columns
    cell_height = 26 + 18.0 * len(exports) + 44
    parts: list[str] = []
    for index, (label, metric) in enumerate(tasks):
        scores = {score.export: score for score in shown if (score.label, score.metric) == (label, metric)}
        left, y = name_width + (index % columns) * cell_width, (index // columns) * cell_height
        has_names = index % columns == 0  # the names stand once a row, left of its panels
        right = left + cell_width - (34 if columns > 1 else 14)
        frame = Frame(Scale(0, 1, left, right), Scale(0, 1, y + 26 + 18.0 * len(exports), y + 26))
        parts.append(_score_panel(frame, f"{label} ({metric})", scores, exports, name_width if has_names else None))
    rows = -(-len(tasks) // columns)
    return drawing(width, rows * cell_height, f"Scores of {len(exports)} exports on {len(tasks)} tasks", *parts)


def _interval(score: Score) -> tuple[float, float]:
    reach = _CONFIDENCE * (score.stderr or 0.0)
    return score.value - reach, score.value + reach


def _score_panel(
    frame: Frame, title: str, scores: Mapping[str, Score], exports: Sequence[str], name_width: float | None
) -> Markup:
    bounds = [bound for score in scores.values() for bound in _interval(score)]
    chances = [score.chance for score in scores.values() if score.chance is not None]
    lowest, highest = padded([*bounds, *chances], 0.1)
    x = Scale(max(0.0, lowest) if min(bounds) >= 0 else lowest, highest, frame.x.start, frame.x.end)
    frame = Frame(x, frame.y)
    parts: list[str] = [
        value_axis(frame, "", 5),
        text(
            fitted(title, (frame.right - frame.left + 24) / 1.1, TEXT_SIZE), frame.left, frame.top - 8, class_="panel"
        ),
    ]
    if chances:
        at = frame.x(chances[0])
        parts.append(straight(at, frame.top - 3, at, frame.bottom, "zero"))
        parts.append(text(f"chance {chances[0]:.3g}", at, frame.bottom + 28, "middle", "quiet"))
    for row, export in enumerate(exports):
        y = frame.top + 18.0 * (row + 0.5)
        if name_width is not None:
            parts.append(text(fitted(export, name_width - 10, TEXT_SIZE), frame.left - 8, y + 3.8, "end", "name"))
        score = scores.get(export)
        if score is None:
            continue
        low, high = _interval(score)
        spread = "" if score.stderr is None else f" ± {score.stderr:.4f} (standard error)"
        parts.append(straight(frame.x(low), y, frame.x(high), y, "bar main"))
        parts.append(point(frame.x(score.value), y, f"{export}, {title}: {score.value:.4f}{spread}", "dot main"))
    return joined(parts)


def kept_documents(stages: Sequence[Stage], width: float) -> Markup:
    """Return a bar for each source: documents in, dropped by each stage, and left."""
    order = list(dict.fromkeys(stage.stage for stage in stages))
    by_source: dict[str, list[Stage]] = {}
    for stage in stages:
        by_source.setdefault(stage.source, []).append(stage)
    left = name_column(list(by_source), width)
    frame = Frame(Scale(0, 1, left, width - 64), Scale(0, 1, 8 + _ROW * len(by_source), 8))
    parts: list[str] = []
    for row, (source, found) in enumerate(by_source.items()):
        y = frame.top + _ROW * row
        parts.append(text(fitted(source, left - 10, TEXT_SIZE), left - 8, y + _ROW / 2 + 3.8, "end", "name"))
        kept, lost = found[-1].num_documents, {stage.stage: sum(stage.dropped.values()) for stage in found}
        total = kept + sum(lost.values())
        if not total:
            parts.append(text("no documents", left + 4, y + _ROW / 2 + 3.8, class_="quiet"))
            continue
        pieces = [("kept", kept, "fill:var(--kept)")]
        pieces += [(name, lost[name], f"fill:var(--drop{order.index(name) % 4})") for name in lost]
        below = 0
        for name, count, style in pieces:
            if count:
                shape = {"x": frame.x(below / total), "width": (frame.right - left) * count / total}
                what = "kept" if name == "kept" else f"dropped by {name}"
                tip = f"{source}: {counted(count, 'document')} {what} ({count / total:.1%})"
                parts.append(
                    element("rect", y=y + 4, height=_ROW - 8, class_="area", style=style, data_tip=tip, **shape)
                )
            below += count
        parts.append(text(f"{kept / total:.0%} kept", frame.right + 6, y + _ROW / 2 + 3.8))
    parts.append(straight(left, frame.top, left, frame.bottom, "axis"))
    return drawing(width, frame.bottom + 6, f"Documents kept and dropped of {len(by_source)} sources", *parts)
