"""What is measured, exported and shown: evaluations of every phase, exports and scores of three, one report."""

from collections.abc import Mapping, Sequence

from marin_dag.graph.step import Step
from pipelines.corpus import Corpus
from pipelines.reporting import report_on
from pipelines.scales import Scale
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.hf_export import HfExportConfig, hf_export
from steps.lm_eval import LmEvalConfig, lm_eval

EXPORTED = ("jellyfish", "starling", "deeper_starling")


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


def reported(scale: Scale, corpus: Corpus, results: Sequence[Step]) -> Step:
    """Return the report on everything that the recipe measured, exported and scored."""
    title, introduction = _opening(scale, corpus)
    return report_on(
        results,
        title=title,
        introduction=introduction,
        command="python pipelines/tootsie.py",
        labels=corpus.labels,
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
