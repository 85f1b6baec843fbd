"""Tables of the page about training and its worth: each figure's values in numbers, and what no figure shows."""

import math
from collections.abc import Mapping

from runtime.report.contents import Evaluation, Phase, Report, Score, mean
from runtime.report.labels import tokens_label
from runtime.report.markup import Markup, element, joined
from runtime.report.recipe import rate
from runtime.report.score_doubts import doubts
from runtime.report.tables import CONTINUED, NONE, Cell, Column, table


def phase_name(phase: Phase) -> str:
    """Return a phase's name for tables; branches are indented."""
    return phase.name if phase.is_main else f"↳ {phase.name}"


def exports_table(report: Report) -> Markup:
    """Return where each exported model is."""
    columns = [Column("export"), Column("phase"), Column("weights"), Column("folder"), Column("digest")]
    rows = [
        [item.name, item.phase, item.weights, element("code", item.folder), element("code", item.digest)]
        for item in report.exports
    ]
    return table(columns, rows, "Exported models")


def phases_table(report: Report) -> Markup:
    """Return steps, tokens, batch, learning rate and loss of each phase."""
    columns = [
        Column("phase"), Column("starts from"), Column("steps", "number"), Column("tokens", "number"),
        Column("batch", "number"), Column("learning rate"), Column("average (decay)"), Column("final loss", "number"),
    ]  # fmt: skip
    rows = []
    for phase in report.phases:
        curve = phase.curve
        sizes = sorted({int(size) for size in curve.global_batch_size})
        num_skipped = phase.step - phase.start_step - len(curve.step)
        skipped = f" ({num_skipped:,} skipped)" if num_skipped else ""
        rates = f"{rate(float(curve.learning_rate[0]))} → {rate(float(curve.learning_rate[-1]))}"
        rows.append(
            [
                phase_name(phase),
                _start_of(phase),
                f"{phase.start_step + 1:,} – {phase.step:,}{skipped}",
                f"{tokens_label(phase.start_tokens)} – {tokens_label(phase.consumed_tokens)}",
                ", ".join(f"{size:,}" for size in sizes),
                rates,
                _kept(phase) if phase.averages else Cell("none", is_quiet=True),
                f"{phase.final_loss:.3f}",
            ]
        )
    return table(columns, rows, "Phases; steps and tokens are counted from the start of the run")


def _kept(phase: Phase) -> str:
    """Decays of the averages; names only where there are several to tell apart."""
    if len(phase.averages) == 1:
        return f"{phase.averages[0].decay:g}"
    return ", ".join(f"{average.name} {average.decay:g}" for average in phase.averages)


def reading_table(report: Report) -> Markup:
    """Return a table of epochs and tokens of each source by the end of each phase, as the log of draws counts them."""
    if report.consumption is None:
        return Markup()
    uses = {(use.source, use.phase): use for use in report.consumption.uses}
    phases = report.main_line
    columns = [
        Column("source"), Column("train tokens", "number"), *(Column(phase.name, "number") for phase in phases),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for cache in report.caches:
        found = [uses.get((cache.source, phase.name)) for phase in phases]
        cells = [
            NONE if use is None else f"{_three_digits(use.epochs)} × ({tokens_label(use.num_tokens)})" for use in found
        ]  # fmt: skip
        rows.append([cache.source, f"{cache.num_train_tokens:,}", *cells])
    summary_text = [element("ul", *[element("li", str(finding)) for finding in report.consumption.findings])]
    return joined(
        [
            table(columns, rows, "Times that a source was read by the end of each phase (tokens drawn in the phase)"),
            *(summary_text if report.consumption.findings else []),
        ]
    )


def _three_digits(value: float) -> str:
    """However small: a source of which a thousandth was read is not one that was not."""
    if not value or math.isinf(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def forks_table(report: Report) -> Markup:
    """Return each fork beside the phase that it is with other settings: what was changed, and what it did."""
    by_name = {phase.name: phase for phase in report.phases}
    found = {evaluation.phase: mean(evaluation.best) for evaluation in report.evaluations}
    columns = [
        Column("fork"), Column("of"), Column("changes"), Column("why"), Column("final loss", "number"),
        Column("against it", "number"), Column("bits per byte", "number"), Column("against it", "number"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for fork in report.forks:
        base = by_name[fork.fork_of or ""]
        settings = {change.field: change.after for change in base.changes}
        changed = [f"{item.field}: {item.after}" for item in fork.changes if settings.get(item.field) != item.after]
        kept = {item.field for item in fork.changes}
        changed += [f"{item.field}: {item.before}" for item in base.changes if item.field not in kept]
        both = fork.name in found and base.name in found
        rows.append(
            [
                fork.name,
                base.name,
                Cell("; ".join(changed) or f"ends at step {fork.step:,}"),
                Cell(fork.fork_reason) if fork.fork_reason else NONE,
                f"{fork.final_loss:.3f}",
                f"{fork.final_loss - base.final_loss:+.3f}",
                f"{found[fork.name]:.4f}" if fork.name in found else NONE,
                f"{found[fork.name] - found[base.name]:+.4f}" if both else NONE,
            ]
        )
    return element("div", table(columns, rows, "Forks; less is better, and a minus is a gain"), class_="recipe")


def domains_table(report: Report) -> Markup:
    """Return bits per byte of each phase: the mean, then the domains; averages first, then the weights."""
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    domains = report.domains
    columns = [
        Column("phase"),
        Column("weights"),
        Column("mean", "number"),
        *(Column(domain, "number") for domain in domains),
    ]
    competing = [values for evaluation in report.evaluations for values in _competing(evaluation)]
    least = {domain: min(values[domain] for values in competing if domain in values) for domain in domains}
    least_mean = min(mean(values) for values in competing)
    rows: list[list[str | Cell]] = []
    for phase in report.phases:
        evaluation = found.get(phase.name)
        if evaluation is None:
            continue
        name: str | Cell = phase_name(phase)
        if phase.same_as is not None:
            rows.append([name, Cell(f"as {phase.same_as}", is_quiet=True), NONE, *(NONE for _ in domains)])
            continue
        for which, values in {**evaluation.averages, "weights": evaluation.hot}.items():
            rows.append(_domain_row(name, which, values, evaluation, least, least_mean))
            name = CONTINUED
    return table(columns, rows, "Bits per byte; bold: the best of all phases (averaged weights where they are kept)")


def _competing(evaluation: Evaluation) -> list[Mapping[str, float]]:
    """Return the weights one would choose among: every average, or the weights themselves without one."""
    return list(evaluation.averages.values()) or [evaluation.hot]


def _domain_row(
    name: str | Cell,
    weights: str,
    values: Mapping[str, float],
    evaluation: Evaluation,
    least: Mapping[str, float],
    least_mean: float,
) -> list[str | Cell]:
    competes = any(values is competing for competing in _competing(evaluation))
    cells: list[str | Cell] = [
        Cell(f"{values[domain]:.4f}", competes and values[domain] == least[domain], not competes)
        if domain in values
        else NONE
        for domain in least
    ]
    average = mean(values)
    return [name, weights, Cell(f"{average:.4f}", competes and average == least_mean, not competes), *cells]


def scores_table(report: Report) -> Markup:
    """Score ± standard error of each export and task, and chance."""
    tasks = list(dict.fromkeys((score.label, score.metric) for score in report.scores))
    exports = list(dict.fromkeys(score.export for score in report.scores))
    columns = [
        Column("task"),
        Column("metric"),
        Column("chance", "number"),
        *(Column(name, "number") for name in exports),
    ]
    rows: list[list[str | Cell]] = []
    for label, metric in tasks:
        found = {score.export: score for score in report.scores if (score.label, score.metric) == (label, metric)}
        chance = next((score.chance for score in found.values() if score.chance is not None), None)
        most = max(score.value for score in found.values())
        cells = [_score_cell(found[name], most) if name in found else NONE for name in exports]
        rows.append([label, metric, NONE if chance is None else f"{chance:.3f}", *cells])
    return table(
        columns, rows, "Scores ± standard error; bold: the best of a row, whether or not the difference means anything"
    )


def _score_cell(score: Score, most: float) -> Cell:
    spread = "" if score.stderr is None else f" ± {score.stderr:.3f}"
    return Cell(f"{score.value:.3f}{spread}", is_best=score.value == most)


def score_warnings(report: Report) -> Markup:
    """Return the warnings about scores."""
    found = doubts(report)
    if not found:
        return Markup()
    return joined(
        [element("p", "Not to be trusted as they stand:"), element("ul", *[element("li", line) for line in found])]
    )


def steps_table(report: Report) -> Markup:
    """Return every step, for a reader without a pointer."""
    columns = [Column("step"), Column("kind"), Column("state"), Column("reads")]
    rows: list[list[str | Cell]] = [
        [node.name, node.kind, node.state, Cell(", ".join(node.inputs), is_quiet=True)] for node in report.graph
    ]
    return element("div", table(columns, rows, "Steps of the graph"), class_="wrap")


def recipe_table(report: Report) -> Markup:
    """Return a table of the settings that each phase changes, one row a field."""
    columns = [Column("phase"), Column("starts from"), Column("field"), Column("before"), Column("after")]
    rows: list[list[str | Cell]] = []
    for phase in report.phases:
        rows += _recipe_rows(phase)
    return element("div", table(columns, rows, "What each phase changes"), class_="recipe")


def _start_of(phase: Phase) -> str | Cell:
    """Return the phase that it starts from, or what else, which a first phase counts among its settings."""
    if phase.parent is not None:
        return phase.parent
    return Cell(next((change.after for change in phase.changes if change.field == "start"), "scratch"), is_quiet=True)


def _recipe_rows(phase: Phase) -> list[list[str | Cell]]:
    name = phase_name(phase)
    start = _start_of(phase)
    if phase.same_as is not None:
        return [[name, start, Cell(f"the same training as {phase.same_as}", is_quiet=True), "", ""]]
    if not phase.changes:
        return [[name, start, Cell("changes nothing", is_quiet=True), "", ""]]
    rows: list[list[str | Cell]] = []
    for index, change in enumerate(phase.changes):
        first: list[str | Cell] = [name, start] if index == 0 else [CONTINUED, CONTINUED]
        rows.append([*first, element("code", change.field), Cell(change.before, is_quiet=True), change.after])
    return rows
