"""Report: everything a pipeline made, in; one self-contained HTML page and its headline figures, out."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, StringConstraints

from marin_dag.step import Input, StepContext, step
from runtime.data.consumption import Consumption, Drawn, Finding, SourceUse, tallied
from runtime.data.mixture import MixtureSchedule
from steps.decontaminate import DecontaminateResult
from steps.dedup_spans import DedupSpansResult
from steps.documents import DocumentsResult
from steps.ema_eval import EmaEvalResult
from steps.hf_export import HfExportResult
from steps.lm_eval import LmEvalResult
from steps.phase_result import FINAL_LOSS_STEPS, TrainPhaseResult
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from runtime.report.contents import Evaluation, Export, Filling, Node, Phase, Report, Score, SourceCurve, Stage
    from runtime.report.draws import Draws

PAGE_FILE, SUMMARY_FILE = "report.html", "summary.json"
StageName = Annotated[
    str, StringConstraints(pattern=r"^(extract|filter|dedup|dedup spans|decontaminate)( ([2-9]|[1-9]\d+))?$")
]
"""A kind of step, and its number among those of its kind if it is not the first: "filter", "filter 2"."""


class GraphNode(BaseModel, frozen=True, extra="forbid"):
    """A step as the drawing shows it."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    """Names of the steps it reads."""
    group: str
    """Row of the drawing: the source or the phase that the step belongs to; "" for one that stands alone."""


class RecipeChange(BaseModel, frozen=True, extra="forbid"):
    """One setting of a phase that differs from the phase it starts from, in words."""

    field: str
    before: str
    after: str


class ReportConfig(BaseModel, frozen=True, extra="forbid"):
    """Everything is named by phase or by source; an export by its phase, or by `phase/anything` if it has several."""

    title: str
    introduction: str
    main_line: tuple[str, ...] = Field(min_length=1)
    """Phases that lead to the final model, in order; the others are branches."""
    phases: dict[str, Input[TrainPhaseResult]]
    parents: dict[str, str]
    """Phase -> the phase it starts from."""
    forks: dict[str, str] = {}
    """Branch that was made on the command line -> the phase that it repeats with other settings; any number."""
    fork_reasons: dict[str, str] = {}
    """Of those whose maker said why."""
    labels: dict[str, str] = {}
    """Source -> what to call it, where mixtures and caches do not name it as a person does."""
    mixtures: dict[str, MixtureSchedule]
    recipe: dict[str, tuple[RecipeChange, ...]]
    evaluations: dict[str, Input[EmaEvalResult]]
    exports: dict[str, Input[HfExportResult]]
    scores: dict[str, Input[LmEvalResult]]
    """By the name of the export."""
    sources: dict[str, dict[StageName, Input[DocumentsResult]]]
    """Source -> stage -> what that stage left of it, in the order in which the documents went through them."""
    caches: dict[str, Input[TokenizeResult]]
    graph: tuple[GraphNode, ...]
    samples_per_reason: int = Field(default=3, ge=0)
    """Dropped documents shown for each source, stage and reason."""


class ReportResult(BaseModel, frozen=True, extra="forbid"):
    """Files, relative to the step's output."""

    page: str
    summary: str
    """JSON: the headline figures."""


def refuse_unknown_names(config: ReportConfig) -> None:
    """Refuses a name that no phase has, before anything runs.

    Raises:
        ValueError: with the field and the names that there are.
    """
    named = {
        "main_line": config.main_line,
        "parents": (*config.parents, *config.parents.values()),
        "forks": (*config.forks, *config.forks.values()),
        "mixtures": config.mixtures,
        "recipe": config.recipe,
        "evaluations": config.evaluations,
        "exports": [phase_of(name) for name in config.exports],
    }
    for field, names in named.items():
        unknown = sorted(set(names) - set(config.phases))
        if unknown:
            raise ValueError(f"{field} names {unknown}, which are no phases; phases are {sorted(config.phases)}.")
    unknown = sorted(set(config.scores) - set(config.exports))
    if unknown:
        raise ValueError(f"scores names {unknown}, which are no exports; exports are {sorted(config.exports)}.")
    nodes = {node.name for node in config.graph}
    for node in config.graph:
        missing = sorted(set(node.inputs) - nodes)
        if missing:
            raise ValueError(f"graph: {node.name!r} reads {missing}, which are not in the graph; add those steps.")


def phase_of(export: str) -> str:
    """The phase that an export was made of."""
    return export.split("/")[0]


@step(policy="tracked", packages=("numpy", "pyarrow"), check=refuse_unknown_names)
def report(config: ReportConfig, context: StepContext) -> ReportResult:
    """The page holds no time, host or path: the same results give the same bytes."""
    import json

    import fsspec

    from runtime.report.page import render, summary
    from runtime.report.score_doubts import doubts

    contents = contents_of(config)
    for doubt in doubts(contents):
        context.log.warning("%s", doubt)
    written = {
        PAGE_FILE: render(contents),
        SUMMARY_FILE: json.dumps(summary(contents), indent=2, sort_keys=True, ensure_ascii=False) + "\n",
    }
    for name, text in written.items():
        with fsspec.open(f"{context.output_path}/{name}", "wb", auto_mkdir=True) as file:
            file.write(text.encode())
    context.log.info("the report is %s/%s", context.output_path, PAGE_FILE)
    return ReportResult(page=PAGE_FILE, summary=SUMMARY_FILE)


def contents_of(config: ReportConfig) -> "Report":
    """Results and files of the inputs as the plain values that the page shows."""
    from runtime.report.contents import Cache, Report

    caches = tuple(
        Cache(name, found.num_train_tokens, found.num_validation_tokens, found.num_train_bytes)
        for name, found in sorted((_label(config, name), source.result) for name, source in config.caches.items())
    )
    draws = _draws(config)
    phases = _phases(config, draws)
    return Report(
        title=config.title,
        introduction=config.introduction,
        phases=phases,
        evaluations=_evaluations(config),
        exports=_exports(config),
        scores=_scores(config),
        stages=_stages(config),
        caches=caches,
        graph=_graph(config),
        consumption=_consumption(config, phases, draws),
        source_curves=_source_curves(config),
        fillings=_fillings(config, phases),
        final_loss_steps=FINAL_LOSS_STEPS,
    )


def _fillings(config: ReportConfig, phases: "Sequence[Phase]") -> "tuple[Filling, ...]":
    from runtime.report.contents import Filling
    from runtime.report.readings import read_num_targets

    made = []
    for phase in (phase for phase in phases if phase.same_as is None):
        found = config.phases[phase.name]
        num_targets = read_num_targets(found.join(found.result.metrics), after_tokens=phase.start_tokens)
        made.append(Filling(phase.name, phase.consumed_tokens - phase.start_tokens, num_targets))
    return tuple(made)


def _source_curves(config: ReportConfig) -> "tuple[SourceCurve, ...]":
    from runtime.report.readings import read_source_curves

    last = config.phases[config.main_line[-1]]
    curves = read_source_curves(last.join(last.result.source_losses))
    named = (dataclasses.replace(curve, source=_label(config, curve.source)) for curve in curves)
    return tuple(sorted(named, key=lambda curve: curve.source))


def _label(config: ReportConfig, source: str) -> str:
    return config.labels.get(source, source)


def _labelled(config: ReportConfig, values: dict[str, float]) -> dict[str, float]:
    return {_label(config, source): value for source, value in values.items()}


def _draws(config: ReportConfig) -> "dict[str, Draws]":
    from runtime.report.draws import read_draws

    return {name: read_draws(phase.join(phase.result.source_losses)) for name, phase in config.phases.items()}


def _consumption(config: ReportConfig, phases: "Sequence[Phase]", draws: "dict[str, Draws]") -> Consumption | None:
    """What each phase took from each source on its own way from the start of the run, as its log of draws has it.

    Findings are of the whole ways: one to the end of the main line, and one to the end of each branch.
    """
    from runtime.report.readings import read_progress

    if not config.caches:
        return None
    by_name = {phase.name: phase for phase in phases}
    num_tokens = {name: cache.result.num_train_tokens for name, cache in config.caches.items()}
    progress = {name: read_progress(phase.join(phase.result.metrics)) for name, phase in config.phases.items()}
    uses: list[SourceUse] = []
    findings: dict[tuple[type, str], Finding] = {}
    for phase in phases:
        way = [phase]
        while way[0].parent is not None:
            way.insert(0, by_name[way[0].parent])
        # A branch may leave its parent before the end of it, so the parent's leg ends where the branch begins.
        ends = [later.start_step for later in way[1:]] + [phase.step]
        legs = [
            Drawn(leg.name, draws[phase.name].between(leg.start_step, end), progress[leg.name].sequence_length_at(end))
            for leg, end in zip(way, ends, strict=True)
            if leg.start_step < end
        ]
        found = tallied(legs, num_tokens=num_tokens)
        uses += [
            dataclasses.replace(use, source=_label(config, use.source)) for use in found.uses if use.leg == phase.name
        ]
        if not phase.is_main or phase is [item for item in phases if item.is_main][-1]:
            named = (dataclasses.replace(item, source=_label(config, item.source)) for item in found.findings)
            findings |= {(type(item), item.source): item for item in named if (type(item), item.source) not in findings}
    return Consumption(tuple(uses), tuple(findings.values()))


def _order(config: ReportConfig) -> list[str]:
    """The main line, then the branches, each with what starts from it right behind it."""
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


def _phases(config: ReportConfig, draws: "dict[str, Draws]") -> "tuple[Phase, ...]":
    from runtime.report.contents import Average, Change, Phase
    from runtime.report.draws import drawn_spans
    from runtime.report.readings import read_curve, read_progress

    order = _order(config)
    curves = {name: read_curve(config.phases[name].join(config.phases[name].result.metrics)) for name in order}
    made: list[Phase] = []
    named: dict[str, str] = {}
    for name in order:
        result, parent = config.phases[name].result, config.parents.get(name)
        if result.final_loss is None:
            raise ValueError(f"{name}: every update was left out by its skip rule; there is nothing to report of it.")
        start_step = 0
        if parent is not None:
            before, common = config.phases[parent].result, curves[name].common_rows(curves[parent])
            if result.begin_step > before.begin_step:
                start_step = result.begin_step
            elif common < len(curves[name]):
                # Cut in two, it began where its parent did; before results told where, rows alone did. Updates that
                # the skip rule left out have none, so the first may come later than the phase began.
                start_step = min(int(curves[name].step[common]) - 1, before.step)
            else:  # a stop on its parent's way: its updates are those
                start_step = next((phase.start_step for phase in made if phase.name == parent), 0)
        own = curves[name].behind(start_step)
        if not len(own):
            raise ValueError(
                f"{name}: every update of its own was left out by its skip rule; nothing is to report of it."
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


def _evaluations(config: ReportConfig) -> "tuple[Evaluation, ...]":
    from runtime.report.contents import Evaluation

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


def _exports(config: ReportConfig) -> "tuple[Export, ...]":
    from runtime.report.contents import Export

    found = ((name, config.exports[name]) for name in _in_order_of_phases(config))
    return tuple(
        Export(name, phase_of(name), export.result.weights, export.digest[:8], _folder(export))
        for name, export in found
    )


def _folder(export: Input[HfExportResult]) -> str:
    # Name and attempt would be different for the same identity, so the page shows what finds them below any prefix.
    return f"outputs/**/*-{export.digest[:8]}/*/{export.result.folder}"


def _scores(config: ReportConfig) -> "tuple[Score, ...]":
    from runtime.report.contents import Score

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


def _stages(config: ReportConfig) -> "tuple[Stage, ...]":
    from runtime.report.contents import Stage
    from runtime.report.readings import read_samples

    made = []
    for source, stages in sorted((_label(config, name), stages) for name, stages in config.sources.items()):
        for stage, found in stages.items():
            result = found.result
            path = result.dropped_samples
            samples = read_samples(found.join(path), config.samples_per_reason) if path else ()
            hits = result.hits_by_task if isinstance(result, DecontaminateResult) else {}
            counts = (result.num_documents, result.num_bytes, result.dropped, result.dropped_bytes)
            edits = (0, 0)
            if isinstance(result, DedupSpansResult):
                edits = result.num_edited, result.num_sentences_removed
            made.append(Stage(source, stage, *counts, samples, hits, *edits))
    return tuple(made)


def _graph(config: ReportConfig) -> "tuple[Node, ...]":
    """What the report reads, directly or not, is done, or it could not run; of the rest it knows nothing."""
    from runtime.report.contents import Node

    inputs = {node.name: node.inputs for node in config.graph}
    own = [node.name for node in config.graph if node.kind == report.name]
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
