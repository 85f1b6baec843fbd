"""Figures of results: weights and EMA weights, bits per byte by domain, scores, documents."""

from collections.abc import Mapping, Sequence

from runtime.report.contents import Evaluation, Phase, Report, Score, leading
from runtime.report.figures import figure
from runtime.report.markup import Markup
from runtime.report.panel import Extent, Panel, Series, around
from runtime.report.recipe import tokens_label
from runtime.report.run_plots import token_range
from runtime.report.theme import BRANCH, MAIN, MUTED

_CONFIDENCE = 1.96
"""Standard errors on either side of a score that hold the truth 19 times in 20."""
_EMA = Series("EMA weights", MAIN)
_WEIGHTS, _BRANCHES = Series("weights", MUTED), Series("branches", BRANCH)


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
