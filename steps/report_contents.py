"""Report contents: results and files of a report's inputs, as the plain values that its page shows."""

import dataclasses
from collections.abc import Sequence

from marin_dag.graph.inputs import Input
from runtime.data.consumption import Consumption, MixtureFinding, PhaseDraws, SourceUse, tallied
from runtime.report.contents import (
    Average,
    Cache,
    Change,
    Evaluation,
    Export,
    Filling,
    Node,
    Phase,
    Report,
    Score,
    SourceCurve,
    Stage,
)
from runtime.report.draws import Draws, drawn_spans, read_draws
from runtime.report.readings import read_curve, read_num_targets, read_progress, read_samples, read_source_curves
from steps.decontaminate import DecontaminateResult
from steps.filter import FilterResult
from steps.hf_export import HfExportResult
from steps.phase_result import FINAL_LOSS_STEPS
from steps.report_config import ReportConfig, phase_of


def contents_of(config: ReportConfig, *, own_kind: str) -> Report:
    """Results and files of the inputs as the plain values that the page shows."""
    caches = tuple(
        Cache(name, found.num_train_tokens, found.num_validation_tokens, found.num_train_bytes)
        for name, found in sorted((_label(config, name), source.result) for name, source in config.caches.items())
    )
    draws = _draws(config)
    phases = _phases(config, draws)
    return Report(
        title=config.title,
        introduction=config.introduction,
        command=config.command,
        phases=phases,
        evaluations=_evaluations(config),
        exports=_exports(config),
        scores=_scores(config),
        stages=_stages(config),
        caches=caches,
        graph=_graph(config, own_kind),
        consumption=_consumption(config, phases, draws),
        source_curves=_source_curves(config),
        fillings=_fillings(config, phases),
        final_loss_steps=FINAL_LOSS_STEPS,
    )


def _fillings(config: ReportConfig, phases: Sequence[Phase]) -> tuple[Filling, ...]:
    made = []
    for phase in (phase for phase in phases if phase.same_as is None):
        found = config.phases[phase.name]
        num_targets = read_num_targets(found.join(found.result.metrics), after_tokens=phase.start_tokens)
        made.append(Filling(phase.name, phase.consumed_tokens - phase.start_tokens, num_targets))
    return tuple(made)


def _source_curves(config: ReportConfig) -> tuple[SourceCurve, ...]:
    last = config.phases[config.main_line[-1]]
    curves = read_source_curves(last.join(last.result.source_losses))
    named = (dataclasses.replace(curve, source=_label(config, curve.source)) for curve in curves)
    return tuple(sorted(named, key=lambda curve: curve.source))


def _label(config: ReportConfig, source: str) -> str:
    return config.labels.get(source, source)


def _labelled(config: ReportConfig, values: dict[str, float]) -> dict[str, float]:
    return {_label(config, source): value for source, value in values.items()}


def _draws(config: ReportConfig) -> dict[str, Draws]:
    return {name: read_draws(phase.join(phase.result.source_losses)) for name, phase in config.phases.items()}


def _consumption(config: ReportConfig, phases: Sequence[Phase], draws: dict[str, Draws]) -> Consumption | None:
    """Return the tokens that each phase took from each source since the start of the run, by its log of draws.

    Findings cover whole paths: to the end of the main line, and to the end of each branch.
    """
    if not config.caches:
        return None
    by_name = {phase.name: phase for phase in phases}
    num_tokens = {name: cache.result.num_train_tokens for name, cache in config.caches.items()}
    progress = {name: read_progress(phase.join(phase.result.metrics)) for name, phase in config.phases.items()}
    uses: list[SourceUse] = []
    findings: dict[tuple[str, str], MixtureFinding] = {}
    for phase in phases:
        way = [phase]
        while way[0].parent is not None:
            way.insert(0, by_name[way[0].parent])
        # A branch may leave its parent before the end of it, so the parent's leg ends where the branch begins.
        ends = [later.start_step for later in way[1:]] + [phase.step]
        legs = [
            PhaseDraws(
                leg.name, draws[phase.name].between(leg.start_step, end), progress[leg.name].sequence_length_at(end)
            )
            for leg, end in zip(way, ends, strict=True)
            if leg.start_step < end
        ]
        found = tallied(legs, num_tokens=num_tokens)
        uses += [
            dataclasses.replace(use, source=_label(config, use.source)) for use in found.uses if use.phase == phase.name
        ]
        if not phase.is_main or phase is [item for item in phases if item.is_main][-1]:
            named = (dataclasses.replace(item, source=_label(config, item.source)) for item in found.findings)
            findings |= {(item.kind, item.source): item for item in named if (item.kind, item.source) not in findings}
    return Consumption(tuple(uses), tuple(findings.values()))


def _order(config: ReportConfig) -> list[str]:
    """Return the main line, then the branches, each with what starts from it right behind it."""
    waiting = sorted(set(config.phases) - set(config.main_line))
    order = list(config.main_line)
    # A stack: what is to come first lies on top.
    pending = [name for place in (None, *order) for name in waiting if config.parents.get(name) == place][::-1]
    while pending:
        name = pending.pop()
        order.append(name)
        pending += [other for other in reversed(waiting) if config.parents.get(other) == name]
    lost = sorted(set(waiting) - set(order))
    if lost:
        raise ValueError(f"parents: {lost} start from each other in a circle.")
    return order


def _phases(config: ReportConfig, draws: dict[str, Draws]) -> tuple[Phase, ...]:
    order = _order(config)
    curves = {name: read_curve(config.phases[name].join(config.phases[name].result.metrics)) for name in order}
    made: list[Phase] = []
    named: dict[str, str] = {}
    for name in order:
        result, parent = config.phases[name].result, config.parents.get(name)
        if result.final_loss is None:
            raise ValueError(f"{name}: the skip rule skipped every training step. Remove the phase from the report.")
        start_step = 0
        if parent is not None:
            before, common = config.phases[parent].result, curves[name].common_rows(curves[parent])
            if result.begin_step > before.begin_step:
                start_step = result.begin_step
            elif common < len(curves[name]):
                # A phase cut in two began where its parent did. Results of older versions have no begin_step, so rows
                # decide; skipped steps have no row, so the first row may come later than the phase began.
                start_step = min(int(curves[name].step[common]) - 1, before.step)
            else:  # a stop of its parent: both share the training steps
                start_step = next((phase.start_step for phase in made if phase.name == parent), 0)
        own = curves[name].behind(start_step)
        if not len(own):
            raise ValueError(
                f"{name}: the skip rule skipped every training step of its own. Remove the phase from the report."
            )
        mixture = config.mixtures.get(name)
        spans = () if mixture is None else drawn_spans(draws[name], mixture, start_step, result.step)
        made.append(
            Phase(
                name=name,
                parent=parent,
                is_main=name in config.main_line,
                start_step=start_step,
                step=result.step,
                start_tokens=read_progress(config.phases[name].join(result.metrics)).tokens_at(start_step),
                consumed_tokens=result.consumed_tokens,
                final_loss=result.final_loss,
                averages=tuple(Average(average.name, average.decay) for average in result.averages),
                curve=own,
                mixture=tuple(dataclasses.replace(span, shares=_labelled(config, dict(span.shares))) for span in spans),
                changes=tuple(Change(item.field, item.before, item.after) for item in config.recipe.get(name, ())),
                same_as=named.get(config.phases[name].key),
                fork_of=config.forks.get(name),
                fork_reason=config.fork_reasons.get(name, ""),
            )
        )
        named.setdefault(config.phases[name].key, name)
    return tuple(made)


def _evaluations(config: ReportConfig) -> tuple[Evaluation, ...]:
    found = ((name, config.evaluations[name].result) for name in _order(config) if name in config.evaluations)
    return tuple(
        Evaluation(
            name,
            item.consumed_tokens,
            _labelled(config, item.hot),
            {measured.average.name: _labelled(config, measured.by_domain) for measured in item.averages},
        )
        for name, item in found
    )


def _in_order_of_phases(config: ReportConfig) -> list[str]:
    order = _order(config)
    return sorted(config.exports, key=lambda name: (order.index(phase_of(name)), name))


def _exports(config: ReportConfig) -> tuple[Export, ...]:
    found = ((name, config.exports[name]) for name in _in_order_of_phases(config))
    return tuple(
        Export(name, phase_of(name), export.result.weights, export.digest[:8], _folder(export))
        for name, export in found
    )


def _folder(export: Input[HfExportResult]) -> str:
    # Name and attempt would be different for the same identity, so the page shows what finds them below any prefix.
    return f"outputs/**/*-{export.digest[:8]}/*/{export.result.folder}"


def _scores(config: ReportConfig) -> tuple[Score, ...]:
    return tuple(
        Score(
            name,
            item.task,
            item.num_fewshot,
            item.metric,
            item.value,
            item.stderr,
            item.chance,
            item.num_items,
            item.warning,
        )
        for name in _in_order_of_phases(config)
        if name in config.scores
        for item in config.scores[name].result.scores
    )


def _stages(config: ReportConfig) -> tuple[Stage, ...]:
    made = []
    for source, stages in sorted((_label(config, name), stages) for name, stages in config.sources.items()):
        for stage, found in stages.items():
            result = found.result
            path = result.dropped_samples
            samples = read_samples(found.join(path), config.samples_per_reason) if path else ()
            hits = result.hits_by_task if isinstance(result, DecontaminateResult) else {}
            counts = (result.num_documents, result.num_bytes, result.dropped, result.dropped_bytes)
            edits = (result.num_edited, result.num_bytes_removed) if isinstance(result, FilterResult) else (0, 0)
            made.append(Stage(source, stage, *counts, samples, hits, *edits))
    return tuple(made)


def _graph(config: ReportConfig, own_kind: str) -> tuple[Node, ...]:
    """Return the graph's nodes with states: the report's own step, steps that it needs (done), and others (unknown)."""
    inputs = {node.name: node.inputs for node in config.graph}
    own = [node.name for node in config.graph if node.kind == own_kind]
    above = set(own) if own else set(inputs)
    waiting = list(above)
    while waiting:
        waiting = [name for node in waiting for name in inputs[node] if name not in above]
        above |= set(waiting)
    return tuple(
        Node(
            node.name, node.kind, node.inputs, node.group,
            "this" if node.name in own else "done" if node.name in above else "unknown",
        )
        for node in config.graph
    )  # fmt: skip
