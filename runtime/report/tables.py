"""Tables of the page: each figure's values in numbers, and what no figure shows."""

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from runtime.evaluation.uncertainty import is_noise
from runtime.evaluation.window_noise import difference_stderr
from runtime.report.contents import Evaluation, Phase, PhaseText, Report, Sample, Stage, mean, name_of_weights
from runtime.report.markup import NONE, Cell, Markup, Row, element, folded, joined, known, listed, table
from runtime.report.recipe import bytes_label, counted, percent, rate, tokens_label


def phase_name(phase: Phase) -> str:
    """Return a phase's name for tables; branches are indented."""
    return phase.name if phase.is_main else f"↳ {phase.name}"


def exports_table(report: Report) -> Markup:
    """Return where each exported model is."""
    rows = [
        [item.name, item.phase, item.weights, element("code", item.folder), element("code", item.digest)]
        for item in report.exports
    ]
    return table(["export", "phase", "weights", "folder", "digest"], rows, "Exported models")


def phases_table(report: Report) -> Markup:
    """Return steps, tokens, batch, learning rate and loss of each phase."""
    headings = [
        "phase", "starts from", "#steps", "#tokens", "#trained on", "#batch", "learning rate", "average (decay)",
        "#final loss",
    ]  # fmt: skip
    rows = []
    for phase in report.phases:
        curve, tokens = phase.curve, phase.consumed_tokens - phase.start_tokens
        num_skipped = phase.step - phase.start_step - len(curve.step)
        skipped = f" ({num_skipped:,} skipped)" if num_skipped else ""
        steps = f"{phase.start_step + 1:,} – {phase.step:,}{skipped}"
        ends = f"{tokens_label(phase.start_tokens)} – {tokens_label(phase.consumed_tokens)}"
        sizes = ", ".join(f"{int(size):,}" for size in sorted(set(curve.global_batch_size.tolist())))
        rates = f"{rate(float(curve.learning_rate[0]))} → {rate(float(curve.learning_rate[-1]))}"
        trained = known(None if phase.num_targets is None else phase.num_targets / tokens, ".2%")
        settings = trained, sizes, rates, _decays(phase) or Cell("none", is_quiet=True)
        rows.append([phase_name(phase), _start_of(phase), steps, ends, *settings, f"{phase.final_loss:.3f}"])
    caption = (
        "Phases; steps and tokens are counted from the start of the run. Trained on: positions with a next token to "
        "predict; the others are padding, and the last token of each document and sequence"
    )
    return table(headings, rows, caption)


def _decays(phase: Phase) -> str:
    """Return the decays of the averages; names only where there are several to tell apart."""
    several = len(phase.averages) > 1
    return ", ".join(f"{average.name if several else ''} {average.decay:g}".strip() for average in phase.averages)


def sources_table(report: Report) -> Markup:
    """Return the tokens of each source, and its epochs by the end of each phase, as the log of draws counts them."""
    uses = {} if report.consumption is None else {(use.source, use.phase): use for use in report.consumption.uses}
    rows: list[Row] = []
    for cache in report.caches:
        found = [uses.get((cache.source, phase.name)) for phase in report.main_line]
        epochs = [NONE if use is None else f"{use.epochs:.3g} × ({tokens_label(use.num_tokens)})" for use in found]
        density = known(cache.num_train_bytes / cache.num_train_tokens if cache.num_train_tokens else None, ".2f")
        rows.append([cache.source, f"{cache.num_train_tokens:,}", f"{cache.num_validation_tokens:,}", density, *epochs])
    headings = ["source", "#train tokens", "#held-out tokens", "#bytes a token"]
    headings += [f"#{phase.name}" for phase in report.main_line]
    caption = "Tokens of each source, and how often it was read by the end of each phase (tokens drawn in the phase)"
    findings = () if report.consumption is None else map(str, report.consumption.findings)
    return joined([table(headings, rows, caption), listed(findings)])


def forks_table(report: Report) -> Markup:
    """Return each fork beside the phase that it is with other settings: what was changed, and what it did."""
    by_name = {phase.name: phase for phase in report.phases}
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    headings = ["fork", "of", "changes", "#bits per byte", "#against it", "#final loss", "#against it", "why"]
    rows: list[Row] = []
    for fork in report.phases:
        if fork.fork_of is not None:
            base = by_name[fork.fork_of]
            its, of_base = found.get(fork.name), found.get(base.name)
            bits = known(None if its is None else mean(its.best), ".4f")
            gain = NONE if its is None or of_base is None else _gain(its, of_base)
            loss = f"{fork.final_loss:.3f}", f"{fork.final_loss - base.final_loss:+.3f}"
            rows.append([fork.name, base.name, _changed(fork, base), bits, gain, *loss, fork.fork_reason or NONE])
    caption = (
        "Forks; less is better. ±: standard error of the difference over held-out windows, "
        "not over seeds; “noise”: its 95 % interval holds 0"
    )
    return table(headings, rows, caption, class_="recipe")


def _changed(fork: Phase, base: Phase) -> str:
    settings = {change.field: change.after for change in base.changes}
    changed = [f"{item.field}: {item.after}" for item in fork.changes if settings.get(item.field) != item.after]
    kept = {item.field for item in fork.changes}
    changed += [f"{item.field}: {item.before}" for item in base.changes if item.field not in kept]
    return "; ".join(changed) or f"ends at step {fork.step:,}"


def _gain(fork: Evaluation, base: Evaluation) -> str:
    """Return the difference of two evaluations in bits per byte, and whether it is larger than its noise."""
    difference = mean(fork.best) - mean(base.best)
    shown = f"{difference:+.4f}"
    ours, theirs, error = fork.windows, base.windows, None
    if ours is not None and theirs is not None:
        error = difference_stderr(ours.losses, theirs.losses, num_tokens=ours.num_tokens, num_bytes=ours.num_bytes)
    if error is not None:
        verdict = "noise" if is_noise(difference, *error) else "worse" if difference > 0 else "better"
        shown += f" ± {error.value:.4f}, {verdict}"
    if fork.best_weights != base.best_weights:  # the difference is also that of averaging
        shown += f": {fork.best_weights} against {base.best_weights}"
    return shown


def side_by_side(texts: Sequence[PhaseText]) -> list[Markup]:
    """Return for each prompt the texts of the phases; nothing without texts."""
    caption = "The prompt is bold; “…” ends a text at its longest length. What a text claims may be wrong."
    rows = [
        element("div", *(_card(text) for text in texts if text.prompt == prompt), class_="texts")
        for prompt in dict.fromkeys(text.prompt for text in texts)
    ]
    return [element("p", caption), *rows] if rows else []


def _card(text: PhaseText) -> Markup:
    name = name_of_weights(text.phase, text.weights)
    written = element("bdi", element("b", text.prompt), text.text, "" if text.is_whole else " …")
    return element("div", element("div", name), element("pre", written), class_="sample")


def domains_table(report: Report) -> Markup:
    """Return bits per byte of each phase: the mean, then the domains; averages first, then the weights."""
    if not report.evaluations:
        return Markup()
    found = {evaluation.phase: evaluation for evaluation in report.evaluations}
    # One would choose among the averages, or the weights themselves without one.
    competing = [values for each in report.evaluations for values in (list(each.averages.values()) or [each.hot])]
    columns: list[Callable[[Mapping[str, float]], float | None]] = [mean]
    columns += [operator.methodcaller("get", domain) for domain in report.domains]
    least = [min(value for values in competing if (value := column(values)) is not None) for column in columns]
    rows: list[Row] = []
    for phase in (phase for phase in report.phases if phase.name in found):
        if phase.same_as is not None:
            rows.append([phase_name(phase), Cell(f"as {phase.same_as}", is_quiet=True), *[NONE] * len(columns)])
            continue
        for which, values in {**found[phase.name].averages, "weights": found[phase.name].hot}.items():
            competes = any(values is each for each in competing)
            cells = [
                NONE if value is None else Cell(f"{value:.4f}", competes and value == best, not competes)
                for value, best in zip((column(values) for column in columns), least, strict=True)
            ]
            rows.append([phase_name(phase), which, *cells])
    caption = "Bits per byte; bold: the best of all phases (averaged weights where they are kept)"
    headings = ["phase", "weights", "#mean", *(f"#{domain}" for domain in report.domains)]
    return table(headings, rows, caption, grouped=1)


def scores_table(report: Report) -> Markup:
    """Return score ± standard error of each export and task, and chance."""
    exports = list(dict.fromkeys(score.export for score in report.scores))
    rows: list[Row] = []
    for label, metric in dict.fromkeys((score.label, score.metric) for score in report.scores):
        found = {score.export: score for score in report.scores if (score.label, score.metric) == (label, metric)}
        chance = next((score.chance for score in found.values() if score.chance is not None), None)
        most = max(score.value for score in found.values())
        cells = [NONE if score is None else Cell(str(score), score.value == most) for score in map(found.get, exports)]
        rows.append([label, metric, known(chance, ".3f"), *cells])
    caption = "Scores ± standard error; bold: the best of a row, whether or not the difference means anything"
    return table(["task", "metric", "#chance", *(f"#{name}" for name in exports)], rows, caption)


def steps_table(report: Report) -> Markup:
    """Return every step of the graph, those of a source or phase together."""
    groups = list(dict.fromkeys(node.group for node in report.graph))
    rows: list[Row] = [
        [node.group, node.name, node.kind, Cell(", ".join(node.inputs), is_quiet=True)]
        for node in sorted(report.graph, key=lambda node: groups.index(node.group))
    ]
    return table(["source or phase", "step", "kind", "reads"], rows, "Steps", grouped=1, class_="wrap")


def recipe_table(report: Report) -> Markup:
    """Return a table of the settings that each phase changes, one row a field."""
    rows: list[Row] = []
    for phase in report.phases:
        opening = [phase_name(phase), _start_of(phase)]
        if phase.same_as is not None or not phase.changes:
            word = "changes nothing" if phase.same_as is None else f"the same training as {phase.same_as}"
            rows.append([*opening, Cell(word, is_quiet=True), "", ""])
            continue
        for change in phase.changes:
            rows.append([*opening, element("code", change.field), Cell(change.before, is_quiet=True), change.after])
    headings = ["phase", "starts from", "field", "before", "after"]
    return table(headings, rows, "What each phase changes", grouped=2, class_="recipe")


def _start_of(phase: Phase) -> str | Cell:
    """Return the phase that it starts from, or what else, which a first phase counts among its settings."""
    if phase.parent is not None:
        return phase.parent
    return Cell(next((change.after for change in phase.changes if change.field == "start"), "scratch"), is_quiet=True)


def stages_table(report: Report) -> Markup:
    """Return documents and bytes that each stage dropped, edited and left, by source."""
    headings = [
        "source", "stage", "#documents in", "#dropped", "#documents out", "#text dropped", "#text out", "edited",
    ]  # fmt: skip
    rows: list[Row] = []
    for stage in report.stages:
        dropped = stage.num_dropped
        documents = f"{stage.num_documents + dropped:,}", known(dropped or None, ","), f"{stage.num_documents:,}"
        text = _text(stage.num_bytes_dropped, stage.num_bytes_dropped + stage.num_bytes)
        edited = f"{counted(stage.num_edited, 'document')} lost {bytes_label(stage.num_bytes_removed)} and stayed"
        out = bytes_label(stage.num_bytes), edited if stage.num_edited else NONE
        rows.append([stage.source, stage.stage, *documents, text, *out])
    return table(headings, rows, "Documents by source and stage", grouped=1)


def _text(part: int, whole: int) -> str | Cell:
    """Return bytes of text, and their share."""
    return f"{bytes_label(part)} ({percent(part / whole)})" if part else NONE


def rules_table(report: Report) -> Markup:
    """Return the drops of each rule over all sources, most documents first within a stage."""
    rows: list[Row] = []
    for name in dict.fromkeys(stage.stage for stage in report.stages):
        stages = [stage for stage in report.stages if stage.stage == name]
        num_documents = sum(stage.num_documents + stage.num_dropped for stage in stages)
        num_bytes = sum(stage.num_bytes + stage.num_bytes_dropped for stage in stages)
        counts: Counter[str] = Counter()
        for stage in stages:
            counts.update(stage.dropped)
        for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            by_source = sorted(((stage.dropped.get(rule, 0), stage.source) for stage in stages), reverse=True)
            sources = ", ".join(f"{source} {number:,}" for number, source in by_source if number)
            text = _text(sum(stage.dropped_bytes.get(rule, 0) for stage in stages), num_bytes)
            share = percent(count / num_documents) if num_documents else NONE
            rows.append([name, rule, f"{count:,}", share, text, Cell(sources, is_quiet=True)])
    headings = ["stage", "rule", "#documents", "#share", "#text (share)", "sources"]
    return table(headings, rows, "Dropped by rule, over all sources", grouped=1, class_="wrap")


def hits_table(report: Report) -> Markup:
    """Return overlaps with evaluation items, by source and task."""
    rows = [
        [stage.source, task, f"{count:,}"]
        for stage in report.stages
        for task, count in sorted(stage.hits.items(), key=lambda item: (-item[1], item[0]))
    ]
    if not rows and any(stage.stage == "decontaminate" for stage in report.stages):
        return element("p", "Decontamination: no document overlaps with an evaluation item.")
    return table(["source", "task", "#hits"], rows, "Decontamination: overlaps with evaluation items", grouped=1)


def dropped_details(report: Report) -> Markup:
    """Return a fold for each source and stage, with a fold for each reason, with samples."""
    folds = [
        folded(f"{stage.source}, {stage.stage}: {counted(stage.num_dropped, 'document')} dropped", *_reasons(stage))
        for stage in report.stages
    ]
    return joined(folds) or (element("p", "No stage dropped a document.") if report.stages else Markup())


def _reasons(stage: Stage) -> list[Markup]:
    found = []
    for reason, count in sorted(stage.dropped.items(), key=lambda item: (-item[1], item[0])):
        shown = [_sample(sample) for sample in stage.samples if sample.reason == reason]
        size = stage.dropped_bytes.get(reason, 0)
        text = f", {bytes_label(size)} of text" if size else ""
        samples = f", {counted(len(shown), 'sample')}" if shown else ""
        if count:
            line = f"{reason}: {count:,} ({count / stage.num_dropped:.0%}){text}{samples}"
            found.append(folded(line, *shown) or element("div", line, class_="sample"))
    return found


def _sample(sample: Sample) -> Markup:
    detail = [" — ", element("bdi", sample.detail)] if sample.detail else []
    name = element("div", element("bdi", sample.document), *detail)
    return element("div", name, element("pre", element("bdi", sample.excerpt)), class_="sample")
