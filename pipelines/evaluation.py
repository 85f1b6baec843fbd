"""What is measured, exported and shown: evaluations of every phase, exports and scores of three, one report."""

from collections import Counter
from collections.abc import Mapping

from marin_dag.graph.step import Step
from pipelines.corpus import Corpus
from pipelines.reporting import graph_of, parents_of, recipe_of, with_report
from pipelines.scales import Scale
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.hf_export import HfExportConfig, hf_export
from steps.lm_eval import LmEvalConfig, lm_eval
from steps.report import report
from steps.report_config import ReportConfig

EXPORTED = ("jellyfish", "starling", "deeper_starling")
STAGE_OF_KIND = {
    "extract": "extract",
    "filter_documents": "filter",
    "dedup": "dedup",
    "dedup_spans": "dedup spans",
    "decontaminate": "decontaminate",
}


def evaluated(scale: Scale, corpus: Corpus, phases: Mapping[str, Step]) -> dict[str, Step]:
    """After each phase: hot and averaged weights, in bits per byte of each source's held-out documents.

    On the machines of the phase and in as many copies, for its hidden size may divide over them in no other way.
    """
    return {
        name: ema_eval(
            f"ema_eval/{name}",
            EmaEvalConfig(
                phase=phase, caches=dict(corpus.caches), max_tokens_per_domain=scale.evaluation_tokens,
                compute_dtype=scale.compute_dtype, replica_parallel=phase.config.replica_parallel,
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
            resources=scale.scoring_resources,
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
    """One page over all of it. A branch that repeats another phase with other settings, and is none of the recipe's
    own, may be among `branches`: see `ReportConfig.forks`."""
    phases = {**main_line, **branches}
    title, introduction = _opening(scale, corpus)
    shown = [*evaluations.values(), *exports.values(), *scores.values()]
    return report(
        "report",
        ReportConfig(
            title=title,
            introduction=introduction,
            main_line=tuple(main_line),
            phases=phases,
            parents=parents_of(phases),
            mixtures={name: phase.config.mixture for name, phase in phases.items()},
            recipe=recipe_of(phases, corpus.labels),
            labels=dict(corpus.labels),
            evaluations=dict(evaluations),
            exports=dict(exports),
            scores=dict(scores),
            sources={name: stages_of(documents) for name, documents in corpus.documents.items()},
            caches=dict(corpus.caches),
            graph=with_report(graph_of(shown), "report", shown),
        ),
    )


def _opening(scale: Scale, corpus: Corpus) -> tuple[str, str]:
    """Title and first words, which say what the run was trained on where that is not the recipe's."""
    told = "what it read, how it was trained, what it changed, and what came of it."
    if not corpus.is_own:
        return f"Tootsie ({scale.name})", f"Every phase and side branch of the Tootsie 8B recipe: {told}"
    names = sorted(corpus.labels.get(key, key) for key in corpus.documents)
    sources = f"{len(names)} sources" if len(names) > 1 else "one source"
    return (
        f"Tootsie on an own corpus ({scale.name})",
        f"Every phase and side branch of the Tootsie 8B recipe, over {sources} of its own ({', '.join(names)}): {told} "
        "Each source takes the part of the recipe's mixture that the first word of its name tells.",
    )


def stages_of(documents: Step) -> dict[str, Step]:
    """The steps above a source's clean documents that left documents themselves, first to last; the second of a kind
    is called so: "filter", "filter 2"."""
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
