"""The evaluations of every phase, the exports and scores of three, and one report."""

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
