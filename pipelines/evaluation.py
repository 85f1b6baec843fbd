"""The evaluations of every phase, the exports and scores of three, and one report."""

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
    """Return an evaluation of each phase: bits per byte of weights and EMA weights on each source's held-out text.

    It has the machines and the copies of the phase, since the hidden size may divide in no other way.
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
    """Return exports of the EMA weights of three phases, as Hugging Face folders."""
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
    """Return scores of the exported folders on lm-eval's tasks."""
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
    """Return the report. `branches` may contain forks, which are not part of the recipe: see `ReportConfig.forks`."""
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
    """Return title and first sentence, which name the corpus where it is not the recipe's."""
    contents = "its data, its training, its changes and its results."
    if not corpus.is_own:
        return f"Tootsie ({scale.name})", f"Every phase and side branch of the Tootsie 8B recipe: {contents}"
    names = sorted(corpus.labels.get(key, key) for key in corpus.documents)
    sources = f"{len(names)} sources" if len(names) > 1 else "one source"
    return (
        f"Tootsie on an own corpus ({scale.name})",
        f"Every phase and side branch of the Tootsie 8B recipe, over {sources} of its own ({', '.join(names)}): "
        f"{contents} The first word of a source's name chooses its part of the recipe's mixture.",
    )


def stages_of(documents: Step) -> dict[str, Step]:
    """Return the document steps above a source's clean documents, in order; the second of a kind is "filter 2"."""
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
