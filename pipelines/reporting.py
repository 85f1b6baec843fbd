"""The report of a recipe: which phases, sources and scores it shows, read off the steps that it is about.

The report with the forks is a step of its own: a fork that fails or is dropped does not touch the recipe's report.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from marin_dag.graph.fork import Fork
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step, StepKind
from pipelines.phases import main_line_of, parents_of, phases_in, run_phases_in
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.report.recipe import Change, described
from steps.ema_eval import ema_eval
from steps.fit_scaling_law import fit_scaling_law
from steps.hf_export import hf_export
from steps.joined_scores import SCORING_KINDS, whole_scores
from steps.merge_checkpoints import merge_checkpoints
from steps.phase_config import chosen_settings
from steps.phase_timeline import changes
from steps.report import report
from steps.report_config import ReportConfig
from steps.sample import sample
from steps.tokenize import tokenize
from steps.train_phase import train_phase

STAGE_OF_KIND = {
    "extract": "extract", "filter_documents": "filter", "dedup": "dedup", "decontaminate": "decontaminate",
}  # fmt: skip
MEASURED_KINDS = (ema_eval, sample, hf_export)
RESULT_KINDS = (*MEASURED_KINDS, *SCORING_KINDS)
TRAINED_KINDS = (train_phase, merge_checkpoints)
FORKS = "report/forks"
ABSENT = "Not on this page, since they failed or cannot start"


def report_on(
    results: Iterable[Step],
    *,
    title: str,
    introduction: str,
    command: str = "python RECIPE.py",
    labels: Mapping[str, str] | None = None,
    name: str = "report",
    further_phases: Iterable[Step] = (),
    forks: Mapping[str, str] | None = None,
    fork_reasons: Mapping[str, str] | None = None,
) -> Step:
    """Return the report on evaluations, exports and scores, and on every phase and source that they come from.

    Args:
        results: `ema_eval`, `sample`, `hf_export`, `lm_eval` and `joined_scores` steps; a `fit_scaling_law` step stands
            for the evaluations of its rungs, too.
        title: heading of the page.
        introduction: first sentence of the page.
        command: how to call the recipe, for the commands that the page prints.
        labels: source to the name that the page gives it, where that differs.
        name: name of the report's step.
        further_phases: phases to show although no result comes from them.
        forks: phase made on the command line to the phase that it was forked from.
        fork_reasons: phase made on the command line to the reason that its author gave.
    """
    given, labels = list(results), labels or {}
    law = next((step for step in given if step.kind is fit_scaling_law), None)
    rungs = [] if law is None else [item.step for item in law.config.evaluations.values()]
    shown = list(dict.fromkeys([*given, *rungs]))
    graph = Graph([*shown, *further_phases])
    phases = phases_in(graph.steps)
    evaluations = {step.config.phase.step.name: step for step in shown if step.kind is ema_eval}
    caches = _first_caches((*phases.values(), *evaluations.values()))
    scores = _scores_by_export(shown)
    exports = _by_phase(dict.fromkeys([*shown, *(step.config.export.step for step in scores.values())]), hf_export)
    measured = [step.config.phase.step.name for step in (*shown, *exports.values()) if step.kind in MEASURED_KINDS]
    return report(
        name,
        ReportConfig(
            title=title,
            introduction=introduction,
            command=command,
            main_line=tuple(main_line_of(run_phases_in(phases), forks or ())),
            phases=phases,
            parents=parents_of(phases),
            others=tuple(name for name in dict.fromkeys(measured) if name not in phases),
            forks=dict(forks or {}),
            fork_reasons=dict(fork_reasons or {}),
            mixtures={phase: step.config.mixture for phase, step in phases.items()},
            learning_rates={phase: step.config.learning_rate for phase, step in phases.items()},
            untrained={phase: step.config.model for phase, step in phases.items() if step.config.start is None},
            recipe=recipe_of(phases, labels),
            labels=dict(labels),
            evaluations=evaluations,
            texts=_by_phase(shown, sample),
            exports=exports,
            law=law,
            scores={name: scores[step.name] for name, step in exports.items() if step.name in scores},
            sources={source: stages_of(cache.config.documents.step) for source, cache in caches.items()},
            caches=caches,
            tokenizer=next((step.config.tokenizer for step in caches.values() if step.kind is tokenize), None),
        ),
    )


def fork_report(graph: Graph, every: Sequence[Fork], absent: Sequence[Fork]) -> Sequence[Step[Any]]:
    """Return the report on what the step "report" shows and on the forks of its phases; nothing without such forks.

    Args:
        graph: the recipe with all forks and what follows them.
        every: the forks to show.
        absent: forks that would hold the page up; the page lists those of phases.
    """
    if "report" not in graph:
        return ()
    written = graph.step("report")
    shown = written.config
    if not isinstance(shown, ReportConfig):
        return ()
    bases = {fork.name: fork.base for fork in every}
    forks = {
        name: base
        for name, base in bases.items()
        if graph.step(name).kind in TRAINED_KINDS and _leads_to(base, (*shown.phases, *shown.others), bases)
    }
    if not forks:
        return ()
    phases = {name: base for name, base in forks.items() if graph.step(name).kind is train_phase}
    results = [graph.step(item.step.name) for _, item in written.inputs if item.step.kind in RESULT_KINDS]
    at_end = [step for step in graph.steps if step.kind in (ema_eval, sample) and step.background is None]
    results += [step for step in at_end if step.config.phase.step.name in forks]
    listed = ", ".join(fork.name for fork in absent if graph.step(fork.name).kind in TRAINED_KINDS)
    page = report_on(
        results,
        name=FORKS,
        title=f"{shown.title}, with its forks",
        introduction=f"{shown.introduction} {ABSENT}: {listed}." if listed else shown.introduction,
        command=shown.command,
        labels=shown.labels,
        further_phases=[graph.step(name) for name in (*shown.phases, *phases)],
        forks=phases,
        fork_reasons={fork.name: fork.reason for fork in every if fork.name in phases and fork.reason},
    )
    page.declared = None  # no line of a source file declares it
    return (page,)


def _first_caches(readers: Iterable[Step]) -> dict[str, Step]:
    """Return the cache of each source; a fork may have a cache of its own, and the recipe's comes first."""
    found: dict[str, Step] = {}
    for reader in readers:
        for source, item in reader.config.caches.items():
            found.setdefault(source, item.step)
    return found


def _leads_to(base: str, shown: Collection[str], bases: Mapping[str, str]) -> bool:
    """Return whether a fork's base is on the report, or a fork of what is."""
    while base in bases and base not in shown:
        base = bases[base]
    return base in shown


def _by_phase(results: Iterable[Step], kind: StepKind[Any, Any]) -> dict[str, Step]:
    """Return the results of a kind by the phase or import that they read; a phase's second also by its name."""
    found: dict[str, Step] = {}
    for step in results:
        if step.kind is kind:
            phase = step.config.phase.step.name
            found[phase if phase not in found else f"{phase}/{step.name}"] = step
    return found


def _scores_by_export(results: Iterable[Step]) -> dict[str, Step]:
    """Return the scores of each export, by its name; the report has no place for scores of models of others.

    Raises:
        ValueError: two steps score one export.
    """
    found: dict[str, Step] = {}
    for step in whole_scores(results):
        export = step.config.export.step
        if export.kind is hf_export and (other := found.setdefault(export.name, step).name) != step.name:
            names = f"{other} and {step.name}"
            raise ValueError(f"results: {names} both score {export.name}; list all tasks in one call of lm_eval.")
    return found


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


def recipe_of(phases: Mapping[str, Step], labels: Mapping[str, str] | None = None) -> dict[str, tuple[Change, ...]]:
    """Return what each phase changes against the one it starts from; for a first phase, its main settings."""
    parents = parents_of(phases)
    found = {}
    for name, phase in phases.items():
        changed: list[tuple[str, str, str]] = []
        if name in parents:
            for item in changes(phases[parents[name]].config, phase.config):
                before, after = (described(_labelled(value, labels or {})) for value in (item.before, item.after))
                changed.append((item.field, before, after))
        else:
            if phase.predecessor is not None:
                changed.append(("start", "", f"{phase.predecessor.step.name} ({phase.config.restore})"))
            for field, value in chosen_settings(phase.config).items():
                changed.append((field, "", described(_labelled(value, labels or {}))))
        found[name] = tuple(Change(*change) for change in changed)
    return found


def _labelled(value: Any, labels: Mapping[str, str]) -> Any:
    if not isinstance(value, MixtureSchedule):
        return value
    segments = [
        MixtureSegment(item.start_step, {labels.get(key, key): weight for key, weight in item.weights.items()})
        for item in value.segments
    ]
    return MixtureSchedule(tuple(segments))
