"""The report of a recipe: which phases, sources and scores it shows, read off the steps that it is about."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from pipelines.phases import legs_in, main_line_of, parents_of, phases_in
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.report.recipe import Change, Node, described
from steps.ema_eval import ema_eval
from steps.hf_export import hf_export
from steps.lm_eval import lm_eval
from steps.phase_config import TrainPhaseConfig, chosen_settings
from steps.phase_timeline import changes
from steps.report import report
from steps.report_config import ReportConfig

STAGE_OF_KIND = {
    "extract": "extract",
    "filter_documents": "filter",
    "dedup": "dedup",
    "decontaminate": "decontaminate",
}
RESULT_KINDS = (ema_eval, hf_export, lm_eval)
COMMAND = "python RECIPE.py"
"""How a report names the recipe's own file whose path is not given."""


def report_on(
    results: Iterable[Step],
    *,
    title: str,
    introduction: str,
    command: str = COMMAND,
    labels: Mapping[str, str] | None = None,
    name: str = "report",
    further_phases: Iterable[Step] = (),
    forks: Mapping[str, str] | None = None,
    fork_reasons: Mapping[str, str] | None = None,
) -> Step:
    """Return the report on evaluations, exports and scores, and on every phase and source that they come from.

    Args:
        results: `ema_eval`, `hf_export` and `lm_eval` steps.
        title: heading of the page.
        introduction: first sentence of the page.
        command: how to call the recipe, for the commands that the page prints.
        labels: source to the name that the page gives it, where that differs.
        name: name of the report's step.
        further_phases: phases to show although no result comes from them.
        forks: phase made on the command line to the phase that it was forked from.
        fork_reasons: phase made on the command line to the reason that its author gave.
    """
    shown = list(dict.fromkeys(results))
    labels = labels or {}
    phases = phases_in(Graph([*shown, *further_phases]).steps)
    caches = _caches(shown, phases)
    exports = _exports(shown)
    return report(
        name,
        ReportConfig(
            title=title,
            introduction=introduction,
            command=command,
            main_line=tuple(main_line_of(legs_in(phases), forks or ())),
            phases=phases,
            parents=parents_of(phases),
            forks=dict(forks or {}),
            fork_reasons=dict(fork_reasons or {}),
            mixtures={phase: step.config.mixture for phase, step in phases.items()},
            recipe=recipe_of(phases, labels),
            labels=dict(labels),
            evaluations=_evaluations(shown, phases),
            exports=exports,
            scores=_scores(shown, exports),
            sources={source: stages_of(cache.config.documents.step) for source, cache in caches.items()},
            caches=caches,
            graph=with_report(graph_of([*shown, *further_phases]), name, shown),
        ),
    )


def _caches(shown: Iterable[Step], phases: Mapping[str, Step]) -> dict[str, Step]:
    """Return source to token cache, of all phases and evaluations."""
    readers = [*phases.values(), *(step for step in shown if step.kind is ema_eval)]
    return {source: item.step for reader in readers for source, item in reader.config.caches.items()}


def _evaluations(shown: Iterable[Step], phases: Mapping[str, Step]) -> dict[str, Step]:
    """Return the evaluations by phase; the report has no place for those of imported weights."""
    found = {step.config.phase.step.name: step for step in shown if step.kind is ema_eval}
    return {name: step for name, step in found.items() if name in phases}


def _exports(shown: Iterable[Step]) -> dict[str, Step]:
    """Return the exports by phase; the second export of a phase is called `phase/step name`."""
    found: dict[str, Step] = {}
    for step in shown:
        if step.kind is hf_export:
            phase = step.config.phase.step.name
            found[phase if phase not in found else f"{phase}/{step.name}"] = step
    return found


def _scores(shown: Iterable[Step], exports: Mapping[str, Step]) -> dict[str, Step]:
    """Return the scores by the name of their export."""
    name_of = {step.name: name for name, step in exports.items()}
    return {name_of[step.config.export.step.name]: step for step in shown if step.kind is lm_eval}


def stages_of(documents: Step) -> dict[str, Step]:
    """Return the steps that a source's documents went through, first to last: "filter", then "filter 2"."""
    chain: list[Step] = []
    step = documents
    while step.kind.name in STAGE_OF_KIND:
        chain.insert(0, step)
        step = next(item.step for field, item in step.inputs if field in ("documents", "download"))
    found: dict[str, Step] = {}
    seen: Counter[str] = Counter()
    for step in chain:
        stage = STAGE_OF_KIND[step.kind.name]
        seen[stage] += 1
        found[stage if seen[stage] == 1 else f"{stage} {seen[stage]}"] = step
    return found


def graph_of(targets: Iterable[Step]) -> tuple[Node, ...]:
    """Return the targets and every step that they read, inputs first.

    A step called "kind/source" or "kind/phase" is drawn in the row of that source or phase. Phases, whose whole name is
    one name, and all other steps are drawn in a row of their own name.
    """
    nodes = []
    for step in Graph(targets).steps:
        group = step.name if isinstance(step.config, TrainPhaseConfig) else step.name.partition("/")[2] or step.name
        inputs = tuple(dict.fromkeys(item.step.name for _, item in step.inputs))
        nodes.append(Node(name=step.name, kind=step.kind.name, inputs=inputs, group=group))
    return tuple(nodes)


def with_report(nodes: tuple[Node, ...], name: str, inputs: Iterable[Step]) -> tuple[Node, ...]:
    """Return the graph with the report itself, whose step does not exist yet."""
    return (*nodes, Node(name=name, kind="report", inputs=tuple(step.name for step in inputs), group=name))


def recipe_of(phases: Mapping[str, Step], labels: Mapping[str, str] | None = None) -> dict[str, tuple[Change, ...]]:
    """Return what each phase changes against the one it starts from; for a first phase, its main settings."""
    parents = parents_of(phases)
    return {
        name: tuple(
            Change(
                field=field,
                before="" if name not in parents else described(_labelled(before, labels or {})),
                after=described(_labelled(after, labels or {})),
            )
            for field, before, after in _settings(phase, phases.get(parents.get(name, "")))
        )
        for name, phase in phases.items()
    }


def _settings(phase: Step, parent: Step | None) -> list[tuple[str, Any, Any]]:
    if parent is not None:
        return [(item.field, item.before, item.after) for item in changes(parent.config, phase.config)]
    settings: list[tuple[str, Any, Any]] = [
        (name, None, value) for name, value in chosen_settings(phase.config).items()
    ]
    if phase.predecessor is not None:
        settings.insert(0, ("start", None, f"{phase.predecessor.step.name} ({phase.config.restore})"))
    return settings


def _labelled(value: object, labels: Mapping[str, str]) -> object:
    if not isinstance(value, MixtureSchedule):
        return value
    segments = [
        MixtureSegment(item.start_step, {labels.get(key, key): weight for key, weight in item.weights.items()})
        for item in value.segments
    ]
    return MixtureSchedule(tuple(segments))
