"""Searched mixture: against three other ways to mix, for equal tokens with the proxies of the search included.

Each seed trains the same small model under starling's mixture as written (static), under equal shares (stratified),
under `LossDrop`, and under the mixture that a search of that seed found. The search pays for its proxies out of the
tokens of its run. A call trains the proxies, fits the mixtures and then trains the runs; it prints the mean bits per
byte over the sources, each counted equally and by written share, with its standard error over the seeds.

    python benchmarks/searched_mixture.py --corpus DIR --prefix mixture-runs --backend local
"""

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marin_dag.cli.session import Finished
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.prefix import open_store
from pipelines import mixtures, recipe
from pipelines.corpus import weights_by_source
from pipelines.mixture_search import PROXY_MODEL as MODEL
from pipelines.online_mixing import add_arguments
from pipelines.output import aligned
from pipelines.scales import LAPTOP
from pipelines.sources import corpus_sources
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.offline_search import draw_mixtures
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.optim.schedule import Cycles, WsdS
from steps.fit_mixture import FitMixtureConfig, fit_mixture

SEEDS = (0, 1, 2)
STEPS, BATCH_SIZE = 1_000, 8
PROXIES, PROXY_STEPS, PROXY_BATCH_SIZE = 16, 50, 4
SEARCHED_STEPS = STEPS - PROXIES * PROXY_STEPS * PROXY_BATCH_SIZE // BATCH_SIZE
MAX_EPOCHS = 4.0
EVALUATION_TOKENS = 16_384
PEAK_LEARNING_RATE = LAPTOP.rate * 1.7e-3
STATIC = Static()


def data(folder: str) -> tuple[dict[str, Step], dict[str, float]]:
    """Return the token caches, and starling's mixture in the names of these sources."""
    sources = {
        name: source
        for name, source in corpus_sources(folder).items()
        if not source.name.endswith("_validation")  # held out by its publisher
    }
    documents = {
        name: recipe.documents(source.name, source.fetch, source.formats[0]) for name, source in sources.items()
    }
    tokenizer = recipe.tokenizer(documents, vocab_size=MODEL.vocab_size, bytes_per_source=1 << 19)
    written = weights_by_source(
        mixtures.STARLING, {name: (each.role, each.size_in_bytes) for name, each in sources.items()}
    )
    total = sum(written.values())
    labels = {name: source.name for name, source in sources.items()}
    caches = recipe.token_caches(
        {name: documents[name] for name in written}, tokenizer, validation_share=0.03, labels=labels
    )
    return caches, {name: weight / total for name, weight in written.items()}


def phase(
    name: str, mixture: Mapping[str, float], caches: Mapping[str, Step], *, seed: int, steps: int = STEPS,
    batch_size: int = BATCH_SIZE, mixing: MixingPolicy = STATIC,
) -> Step:  # fmt: skip
    """Return a run from scratch with a cooldown over the last fifth."""
    cycle = Cycles(0, steps, steps // 5)
    return recipe.phase(
        name,
        mixture=mixture,
        mixing=mixing,
        caches=dict(caches),
        seed=seed,
        until_step=steps,
        model=MODEL,
        sequence_length=LAPTOP.sequence_length,
        global_batch_size=batch_size,
        remat=LAPTOP.remat,
        learning_rate=WsdS(PEAK_LEARNING_RATE, PEAK_LEARNING_RATE / 10, warmup_steps=steps // 20, cycles=(cycle,)),
        z_loss=1e-4,
        compute_dtype=LAPTOP.compute_dtype,
        checkpoint_every_steps=steps,
        resources=Cpu(1),
    )


def swarms(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the search of each seed."""
    caches, written = data(arguments.corpus)
    found = []
    for seed in SEEDS:
        drawn = draw_mixtures(written, PROXIES, seed=seed)
        proxies = [
            phase(f"proxy-{seed}/{index}", mixture, caches, seed=seed, steps=PROXY_STEPS, batch_size=PROXY_BATCH_SIZE)
            for index, mixture in enumerate(drawn)
        ]
        evaluations = recipe.evaluate(proxies, max_tokens_per_domain=EVALUATION_TOKENS, sampled_windows_per_domain=0)
        config = FitMixtureConfig(
            mixtures=tuple(drawn),
            evaluations=tuple(evaluations),
            caches=caches,
            target_tokens=SEARCHED_STEPS * BATCH_SIZE * LAPTOP.sequence_length,
            max_epochs=MAX_EPOCHS,
            seed=seed,
        )
        found.append(fit_mixture(f"search-{seed}", config))
    return found


def runs(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the evaluations of all runs; the searches have run."""
    caches, written = data(arguments.corpus)
    records = Records(open_store(arguments.prefix))
    phases = []
    for seed, search in zip(SEEDS, swarms(arguments), strict=True):
        result = search.kind.result_type.model_validate(records.get(search.key).result)
        searched = {name: round(share.share, 6) for name, share in result.shares.items()}
        one = functools.partial(phase, caches=caches, seed=seed)
        phases += [
            one(f"static-{seed}", written),
            one(f"stratified-{seed}", dict.fromkeys(written, 1.0)),
            one(f"loss_drop-{seed}", written, mixing=LossDrop(warmup_steps=STEPS // 10, window_updates=48)),
            one(f"searched-{seed}", searched, steps=SEARCHED_STEPS),
        ]
    return recipe.evaluate(phases, max_tokens_per_domain=EVALUATION_TOKENS, sampled_windows_per_domain=0)


def searched(run: Finished) -> Iterator[str]:
    """Yield the shares and the predicted gain of each search."""
    results = [run.result(f"search-{seed}") for seed in SEEDS]
    rows = [["source", "written", *(f"searched-{seed}" for seed in SEEDS)]]
    for name, first in results[0].shares.items():
        rows.append([name, f"{first.natural:.3f}", *(f"{each.shares[name].share:.3f}" for each in results)])
    for field in ("gain", "gain_low", "gain_high"):
        rows.append([field, "", *(f"{getattr(each, field):+.4f}" for each in results)])
    yield from aligned(rows)


def compared(run: Finished) -> Iterator[str]:
    """Yield the mean over the seeds of each policy, and its difference from static, by both ways of counting."""
    losses: dict[str, list[Any]] = {}
    written: Mapping[str, float] = {}
    for step in run.graph.steps:
        name, _, seed = step.name.removeprefix("ema_eval/").partition("-")
        if step.name.startswith("ema_eval/") and seed.isdigit():
            domains = run.result(step.name).hot
            written = written or run.graph.step(f"{name}-{seed}").config.mixture.shares_at(0)
            by_share = sum(share * domains[source] for source, share in written.items())
            losses.setdefault(name, []).append([float(np.mean([*domains.values()])), by_share])
    rows = [["mixture", "mean of sources", "against static", "by written share", "against static"]]
    for name, found in losses.items():
        values, difference = np.array(found), np.array(found) - np.array(losses["static"])
        rows.append(
            [name, *(text for pair in zip(_columns(values), _columns(difference), strict=True) for text in pair)]
        )
    yield from aligned(rows)


def _columns(values: np.ndarray) -> list[str]:
    errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return [f"{mean:+.4f} ± {error:.4f}" for mean, error in zip(values.mean(axis=0), errors, strict=True)]


def main() -> int:
    """Run the searches, then the runs under what they found; return the exit code."""
    run = functools.partial(recipe.main, name="searched_mixture", add_arguments=add_arguments)
    return run(swarms, summary=searched) or run(runs, summary=compared)


if __name__ == "__main__":
    sys.exit(main())
