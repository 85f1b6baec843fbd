"""Figures of results: weights and EMA weights, bits per byte by domain, scores, documents."""

from collections.abc import Mapping, Sequence

from runtime.report.contents import Evaluation, Phase, Report, Score, Stage, leading, mean
from runtime.report.figures import figure
from runtime.report.markup import Markup
from runtime.report.panel import Extent, Panel, Series, around, series_of, stacked_bars
from runtime.report.recipe import counted, tokens_label
from runtime.report.run_plots import token_range
from runtime.report.theme import BRANCH, MAIN, MUTED

_CONFIDENCE = 1.96
"""Standard errors on either side of a score that hold the truth 19 times in 20."""
_MAIN_LINE, _EMA = Series("main line", MAIN), Series("EMA weights", MAIN)
_WEIGHTS, _BRANCHES, _DOMAINS = Series("weights", MUTED), Series("branches", BRANCH), Series("single domains", MUTED)


def average_gap(report: Report, caption: str) -> Markup:
    """Return a row for each average of each phase: by how much it is better in each domain, and the mean."""
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    rows: dict[str, tuple[Phase, dict[str, float]]] = {}
    for phase in (*report.main_line, *report.branches):
        if phase.same_as is not None or phase.name not in found:
            continue
        evaluation = found[phase.name]
        for name, values in evaluation.averages.items():
            label = phase.name if len(evaluation.averages) == 1 else f"{phase.name}, {name}"
            rows[label] = phase, {domain: hot - values[domain] for domain, hot in sorted(evaluation.hot.items())}
    differences = [value for _, gap in rows.values() for value in gap.values()]
    ends = around([0.0, *differences], least=0.001)
    panel = Panel("gap in bits per byte", ends, list(rows), x_format="0.[0000]")
    panel.level(0.0)
    for label, (phase, gap) in rows.items():
        tips = [f"{label}, {domain}: {value:+.4f}" for domain, value in gap.items()]
        panel.points(_DOMAINS, list(gap.values()), [label] * len(gap), tips, size=5, alpha=0.5)
        tip = f"{label}, mean of {counted(len(gap), 'domain')}: {mean(gap):+.4f}"
        panel.points(_MAIN_LINE if phase.is_main else _BRANCHES, [mean(gap)], [label], [tip], size=10)
    return figure([panel], caption, legend=_named([_MAIN_LINE, _BRANCHES, _DOMAINS]))


def domain_panels(report: Report, caption: str) -> Markup:
    """Return bits per byte over tokens, a panel a domain; every panel spans the same number of bits."""
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    sets = [values for one in report.evaluations for values in (one.hot, *one.averages.values())]
    bounds = {
        domain: around([values[domain] for values in sets if domain in values], 0.08) for domain in report.domains
    }
    span = max(ends.high - ends.low for ends in bounds.values())
    panels = []
    for domain, ends in bounds.items():
        middle = (ends.low + ends.high) / 2
        y = Extent(middle - span / 2, middle + span / 2)
        panel = Panel(domain, token_range(report), y, height=220, x_title="tokens", y_format="0.00[0]")
        shown = [phase for phase in report.phases if phase.name in found and phase.same_as is None]
        _add_evaluations(panel, domain, [phase for phase in shown if domain in found[phase.name].hot], found)
        panels.append(panel)
    return figure(panels, caption, legend=_named([_EMA, _WEIGHTS, _BRANCHES]), columns=3)


def score_panels(report: Report, caption: str) -> Markup:
    """Return a panel a task: each export's score with its 95 % interval, and what guessing would give."""
    by_task: dict[tuple[str, str], list[Score]] = {}
    for score in leading(report.scores):
        by_task.setdefault((score.label, score.metric), []).append(score)
    exports = list(dict.fromkeys(score.export for scores in by_task.values() for score in scores))
    panels = [_score_panel(f"{label} ({metric})", scores, exports) for (label, metric), scores in by_task.items()]
    return figure(panels, caption, columns=3)


def kept_documents(stages: Sequence[Stage], caption: str) -> Markup:
    """Return a bar for each source: the share of documents that each stage dropped, and what is left."""
    order = ["kept", *(f"dropped by {name}" for name in dict.fromkeys(stage.stage for stage in stages))]
    by_source: dict[str, list[Stage]] = {}
    for stage in stages:
        by_source.setdefault(stage.source, []).append(stage)
    pieces = {}
    for source, found in by_source.items():
        counts = {"kept": found[-1].num_documents}
        counts |= {f"dropped by {stage.stage}": stage.num_dropped for stage in found}
        total = max(sum(counts.values()), 1)
        pieces[source] = {
            name: (count / total, f"{source}: {counted(count, 'document')} {name} ({count / total:.1%})")
            for name, count in counts.items()
        }
    series = series_of(order, first=2)  # green is kept; the first colours are those of the runs
    return figure([stacked_bars("share of documents", pieces, series, x_format="0%")], caption, legend=series)


def _named(series: Sequence[Series]) -> dict[str, Series]:
    return {one.name: one for one in series}


def _add_evaluations(panel: Panel, domain: str, phases: Sequence[Phase], found: Mapping[str, Evaluation]) -> None:
    """Draw the marks of a domain, each phase tied to the one that it starts from."""
    ties: dict[Series, list[tuple[float, float, float, float]]] = {}
    marks: dict[tuple[Series, str, bool], list[tuple[float, float, str]]] = {}
    for phase in phases:
        evaluation, start = found[phase.name], found.get(phase.parent or "")
        tokens = float(phase.consumed_tokens)
        series = (_EMA if evaluation.averages else _WEIGHTS) if phase.is_main else _BRANCHES
        if start is not None and domain in start.best:
            ends = (float(start.consumed_tokens), start.best[domain], tokens, evaluation.best[domain])
            ties.setdefault(series, []).append(ends)
        averages = [f"{name} {values[domain]:.4f}" for name, values in evaluation.averages.items()]
        figures = ", ".join([*averages, f"weights {evaluation.hot[domain]:.4f}"])
        tip = f"{domain} after {phase.name} ({tokens_label(tokens)} tokens): {figures}"
        for index, values in enumerate(evaluation.averages.values()):
            look = series, "square" if index else "circle", False
            marks.setdefault(look, []).append((tokens, values[domain], tip))
        if phase.is_main or not evaluation.averages:
            marks.setdefault((_WEIGHTS, "circle", True), []).append((tokens, evaluation.hot[domain], tip))
    for series, lines in ties.items():
        panel.ties(series, lines)
    for (series, marker, is_open), points in marks.items():
        panel.points(series, *zip(*points, strict=True), marker=marker, size=7, is_open=is_open)


def _score_panel(title: str, scores: Sequence[Score], exports: Sequence[str]) -> Panel:
    bars = [(score, _CONFIDENCE * (score.stderr or 0.0)) for score in scores]
    ends = [score.value + sign * reach for score, reach in bars for sign in (-1, 1)]
    chance = scores[0].chance or 0.0
    series = Series("score", MAIN)
    panel = Panel(title, around([*ends, chance], 0.1), exports, x_format="0.[000]")
    panel.level(chance)
    for score, reach in bars:
        spread = "" if score.stderr is None else f" ± {score.stderr:.4f} (standard error)"
        tip = f"{score.export}, {title}: {score.value:.4f}{spread}; chance {chance:.3g}"
        panel.bars(series, [score.export], [score.value - reach], [score.value + reach], [tip], width=0.12)
        panel.points(series, [score.value], [score.export], [tip])
    return panel
