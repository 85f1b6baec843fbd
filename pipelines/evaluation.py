"""What is measured, exported and shown: evaluations of every phase, exports and scores of three, one report."""

from collections.abc import Mapping, Sequence

from marin_dag.step import Step
from pipelines.corpus import Corpus
from pipelines.scales import Scale
from runtime.training.timeline import changes
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.hf_export import HfExportConfig, hf_export
from steps.lm_eval import LmEvalConfig, lm_eval
from steps.report import GraphNode, RecipeChange, ReportConfig, report

EXPORTED = ("jellyfish", "starling", "deeper_starling")
STAGES = ("extract", "filter", "dedup", "decontaminate")


def evaluated(scale: Scale, corpus: Corpus, phases: Mapping[str, Step]) -> dict[str, Step]:
    """After each phase: hot and averaged weights, in bits per byte of each source's held-out documents."""
    return {
        name: ema_eval(
            f"ema_eval/{name}",
            EmaEvalConfig(
                phase=phase, caches=dict(corpus.caches), max_tokens_per_domain=scale.evaluation_tokens,
                compute_dtype=scale.compute_dtype,
            ),
            resources=phase.resources,
        )
        for name, phase in phases.items()
    }  # fmt: skip


def exported(scale: Scale, corpus: Corpus, phases: Mapping[str, Step]) -> dict[str, Step]:
    """The averaged weights of three phases, as Hugging Face folders."""
    return {
        name: hf_export(
            f"hf_export/{name}",
            HfExportConfig(
                phase=phases[name], tokenizer=corpus.tokenizer, weights="averaged", dtype=scale.compute_dtype,
                model_name=f"tootsie-{scale.name}-{name.replace('_', '-')}",
            ),
        )
        for name in EXPORTED
    }  # fmt: skip


def scored(scale: Scale, corpus: Corpus, exports: Mapping[str, Step]) -> dict[str, Step]:
    """The exported folders, as published, through lm-eval's own tasks."""
    return {
        name: lm_eval(
            f"lm_eval/{name}",
            LmEvalConfig(
                export=export, items=corpus.evaluation_items, tasks=scale.tasks, limit=scale.lm_eval_limit,
                compute_dtype=scale.compute_dtype,
            ),
            resources=scale.main_resources,
        )
        for name, export in exports.items()
    }  # fmt: skip


def reported(
    scale: Scale,
    corpus: Corpus,
    main_line: Mapping[str, Step],
    branches: Mapping[str, Step],
    evaluations: Mapping[str, Step],
    exports: Mapping[str, Step],
    scores: Mapping[str, Step],
) -> Step:
    """One page over all of it."""
    phases = {**main_line, **branches}
    parents = {name: start.name for name, phase in phases.items() if (start := phase.predecessor) is not None}
    above = _graph([*evaluations.values(), *scores.values()])
    return report(
        "report",
        ReportConfig(
            title=f"Tootsie ({scale.name})",
            introduction=(
                "Every phase and side branch of the Tootsie 8B recipe: what it read, how it was trained, what it "
                "changed, and what came of it."
            ),
            main_line=tuple(main_line),
            phases=phases,
            parents=parents,
            mixtures={name: phase.config.mixture for name, phase in phases.items()},
            recipe={name: _recipe(phases[parent], phases[name]) for name, parent in parents.items()},
            evaluations=dict(evaluations),
            exports=dict(exports),
            scores=dict(scores),
            sources={name: _stages(documents) for name, documents in corpus.documents.items()},
            caches=dict(corpus.caches),
            graph=tuple(_node(step) for step in above),
        ),
    )


def _recipe(before: Step, after: Step) -> tuple[RecipeChange, ...]:
    return tuple(
        RecipeChange(field=change.field, before=str(change.before), after=str(change.after))
        for change in changes(before.config, after.config)
        if change.field != "mixture"
    )


def _stages(documents: Step) -> dict[str, Step]:
    """The steps above a source's clean documents that left documents themselves, first to last."""
    chain = [step for step in _graph([documents]) if step.kind.name in STAGES]
    return {step.kind.name: step for step in sorted(chain, key=lambda step: STAGES.index(step.kind.name))}


def _graph(targets: Sequence[Step]) -> list[Step]:
    """Every step at or above the targets, each after what it reads."""
    found: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.name in found:
            return
        for _, above in step.inputs:
            visit(above.step)
        found[step.name] = step

    for target in targets:
        visit(target)
    return list(found.values())


def _node(step: Step) -> GraphNode:
    inputs = tuple(dict.fromkeys(above.name for _, above in step.inputs))
    _, _, group = step.name.partition("/")
    return GraphNode(name=step.name, kind=step.kind.name, inputs=inputs, group=group or step.name)
