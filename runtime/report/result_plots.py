"""Figures of results: weights and EMA weights, bits per byte by domain, scores, documents, sequences."""

from collections.abc import Mapping, Sequence

from runtime.report.contents import Evaluation, Phase, Report, Score, Stage, leading, mean
from runtime.report.figures import figure
from runtime.report.labels import counted, tokens_label
from runtime.report.markup import Markup
from runtime.report.panel import Extent, Panel, Series, around, series_of, stacked_bars
from runtime.report.run_plots import token_range
from runtime.report.theme import BRANCH, GRID, MAIN, MUTED

_CONFIDENCE = 1.96
"""Standard errors on either side of a score that hold the truth 19 times in 20."""
_EMA, _WEIGHTS, _BRANCHES = Series("EMA weights", MAIN), Series("weights", MUTED), Series("branches", BRANCH)


def gaps(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return by how much each average is better in bits per byte, by domain; empty without averages."""
    return {
        name: {domain: evaluation.hot[domain] - values[domain] for domain in sorted(evaluation.hot)}
        for name, values in evaluation.averages.items()
    }


def average_gap(report: Report, caption: str) -> Markup:
    """Return a row for each average of each phase: the gap in each domain, and the mean."""
    found = {evaluation.phase: gaps(evaluation) for evaluation in report.evaluations}
    phases = [phase for phase in (*report.main_line, *report.branches) if phase.same_as is None]
    rows = {
        (phase.name if len(found[phase.name]) == 1 else f"{phase.name}, {name}"): (phase, gap)
        for phase in phases
        for name, gap in found.get(phase.name, {}).items()
    }
    values = [value for _, gap in rows.values() for value in gap.values()]
    mean_of = {True: Series("main line", MAIN), False: _BRANCHES}
    domains = Series("single domains", MUTED)
    panel = Panel(
        "gap in bits per byte",
        around([0.0, *values], least=0.001),
        list(rows),
        x_format="0.[0000]",
    )
    panel.level(0.0)
    for label, (phase, gap) in rows.items():
        tips = [f"{label}, {domain}: {value:+.4f}" for domain, value in gap.items()]
        panel.points(domains, list(gap.values()), [label] * len(gap), tips, size=5, alpha=0.5)
        middle = mean(gap)
        tip = f"{label}, mean of {counted(len(gap), 'domain')}: {middle:+.4f}"
        panel.points(mean_of[phase.is_main], [middle], [label], [tip], size=10)
    return figure([panel], caption, legend=_named([*mean_of.values(), domains]))


def domain_panels(report: Report, caption: str) -> Markup:
    """Return bits per byte over tokens, a panel a domain; every panel spans the same number of bits."""
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    bounds = {domain: around(_all_values(report.evaluations, domain), 0.08) for domain in report.domains}
    span = max(ends.high - ends.low for ends in bounds.values())
    x = token_range(report)
    panels = []
    for domain, ends in bounds.items():
        middle = (ends.low + ends.high) / 2
        y = Extent(middle - span / 2, middle + span / 2)
        panel = Panel(domain, x, y, height=220, x_title="tokens", y_format="0.00[0]")
        shown = [phase for phase in report.phases if phase.name in found and phase.same_as is None]
        _add_evaluations(panel, domain, [phase for phase in shown if domain in found[phase.name].hot], found)
        panels.append(panel)
    return figure(panels, caption, legend=_named([_EMA, _WEIGHTS, _BRANCHES]), columns=3)


def score_panels(report: Report, caption: str) -> Markup:
    """Return a panel a task: each export's score with its 95 % interval, and what guessing would give."""
    shown = leading(report.scores)
    exports = list(dict.fromkeys(score.export for score in shown))
    panels = []
    for label, metric in dict.fromkeys((score.label, score.metric) for score in shown):
        scores = [score for score in shown if (score.label, score.metric) == (label, metric)]
        panels.append(_score_panel(f"{label} ({metric})", scores, exports))
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
        counts |= {f"dropped by {stage.stage}": sum(stage.dropped.values()) for stage in found}
        total = max(sum(counts.values()), 1)
        pieces[source] = {
            name: (count / total, f"{source}: {counted(count, 'document')} {name} ({count / total:.1%})")
            for name, count in counts.items()
        }
    colours = series_of([f"{index}" for index in range(len(order) + 2)])
    # Green is kept; the first colours are those of the runs.
    styles = list(colours.values())[2:]
    series = {name: Series(name, style.colour, style.dash) for name, style in zip(order, styles, strict=True)}
    panel = stacked_bars("share of documents", pieces, series, x_format="0%")
    return figure([panel], caption, legend=series)


def filling_bars(report: Report, caption: str) -> Markup:
    """Return a bar for each phase: the share of positions that were trained on."""
    trained, rest = Series("trained on", MAIN), Series("not trained on", GRID)
    pieces = {}
    for filling in report.fillings:
        num_rest = filling.num_positions - filling.num_targets
        tip = f"{filling.phase}: {filling.num_targets:,} positions trained on, {num_rest:,} not ({filling.share:.2%})"
        pieces[filling.phase] = {trained.name: (filling.share, tip), rest.name: (1 - filling.share, tip)}
    series = _named([trained, rest])
    return figure([stacked_bars("share of positions", pieces, series, x_format="0%")], caption, legend=series)


def _named(series: Sequence[Series]) -> dict[str, Series]:
    return {one.name: one for one in series}


def _all_values(evaluations: Sequence[Evaluation], domain: str) -> list[float]:
    sets = [values for evaluation in evaluations for values in (evaluation.hot, *evaluation.averages.values())]
    return [values[domain] for values in sets if domain in values]


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
    reach = {score.export: _CONFIDENCE * (score.stderr or 0.0) for score in scores}
    bounds = [score.value + sign * reach[score.export] for score in scores for sign in (-1, 1)]
    chances = [score.chance for score in scores if score.chance is not None]
    series = Series("score", MAIN)
    x = around([*bounds, *chances], 0.1)
    panel = Panel(title, x, exports, x_format="0.[000]")
    for chance in chances[:1]:
        panel.level(chance)
    for score in scores:
        spread = "" if score.stderr is None else f" ± {score.stderr:.4f} (standard error)"
        guess = "" if score.chance is None else f"; chance {score.chance:.3g}"
        tip = f"{score.export}, {title}: {score.value:.4f}{spread}{guess}"
        low, high = score.value - reach[score.export], score.value + reach[score.export]
        panel.bars(series, [score.export], [low], [high], [tip], width=0.12)
        panel.points(series, [score.value], [score.export], [tip])
    return panel
