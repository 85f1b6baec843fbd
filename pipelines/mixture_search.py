"""Mixture search: small runs under mixtures near starling's, and the best mixture for starling by their losses.

    python pipelines/mixture_search.py
    python pipelines/mixture_search.py --proxies 32

A run ends with the shares, the predicted gain and the command that forks starling with them.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from marin_dag.cli.parser import number
from marin_dag.cli.session import Finished
from marin_dag.graph.step import Step
from pipelines import recipe
from pipelines.corpus import Corpus, laptop_corpus
from pipelines.output import aligned
from pipelines.scales import LAPTOP
from pipelines.tootsie import phases
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.model.config import LLAMA3_ROPE
from runtime.optim.schedule import Linear
from steps.fit_mixture import FitMixtureConfig, FitMixtureResult, fit_mixture

PHASE = "starling"
PROXIES = 16
MOST_PROXIES = 512
"""Number of proxies that RegMix trained (arXiv:2407.01492); each adds two steps to the graph."""
PROXY_STEPS = 100
PROXY_MODEL = dataclasses.replace(
    LAPTOP.model, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2, head_dim=32
)
MAX_EPOCHS = 4.0
"""Repeating data more often is worth little (arXiv:2305.16264)."""
DRAW_SEED = 0


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the step that finds the best mixture from all proxies and their evaluations."""
    corpus = laptop_corpus(LAPTOP)
    target = phases(LAPTOP, corpus)[PHASE].config
    natural = target.mixture.shares_at(target.begin_step)
    # Imported here: NumPy would slow every plan of other recipes.
    from runtime.data.mixing.offline_search import draw_mixtures

    drawn = draw_mixtures(natural, arguments.proxies, seed=DRAW_SEED)
    proxies = [_proxy(f"proxy_{index}", mixture, corpus) for index, mixture in enumerate(drawn)]
    caches = {name: corpus.caches[name] for name in natural}
    evaluations = recipe.evaluate(proxies, caches=caches, max_tokens_per_domain=LAPTOP.evaluation_tokens)
    steps = target.until_step - target.begin_step
    config = FitMixtureConfig(
        mixtures=tuple(drawn),
        evaluations=tuple(evaluations),
        caches=caches,
        target_tokens=steps * target.global_batch_size * target.sequence_length,
        max_epochs=MAX_EPOCHS,
    )
    return [fit_mixture("fit_mixture", config)]


def _proxy(name: str, mixture: dict[str, float], corpus: Corpus) -> Step:
    return recipe.phase(
        name,
        mixture=mixture,
        caches={source: corpus.caches[source] for source in mixture},
        until_step=PROXY_STEPS,
        model=PROXY_MODEL,
        rope=LLAMA3_ROPE,
        sequence_length=LAPTOP.sequence_length,
        global_batch_size=8,
        num_microbatches=4,
        remat=LAPTOP.remat,
        learning_rate=Linear(LAPTOP.rate * 1.7e-3, LAPTOP.cooled_rate, decay_steps=PROXY_STEPS),
        compute_dtype=LAPTOP.compute_dtype,
        checkpoint_every_steps=PROXY_STEPS,
        resources=LAPTOP.main_resources,
    )


def summary(run: Finished) -> Iterator[str]:
    """Yield the shares, what they are predicted to gain, and the command of the fork."""
    found: FitMixtureResult | None = run.result("fit_mixture")
    if found is None:
        return
    rows = [["source", "natural", "found", "90 %", "epochs", "law's error", "spread"]]
    for name, each in found.shares.items():
        figures = [f"{each.natural:.3f}", f"{each.share:.3f}", f"{each.low:.3f} to {each.high:.3f}"]
        errors = [f"{found.errors[name]:.4f}", f"{found.spread[name]:.4f}"]
        rows.append([name, *figures, f"{each.epochs:.2f}", *errors])
    yield from aligned(rows)
    yield (
        f"predicted gain over the natural mixture: {found.gain:.4f} bits per byte (90 %: {found.gain_low:.4f} to "
        f"{found.gain_high:.4f})"
    )
    schedule = MixtureSchedule(
        (MixtureSegment(0, {name: round(each.share, 4) for name, each in found.shares.items()}),)
    )
    value = json.dumps(dataclasses.asdict(schedule))
    yield f"fork it  python pipelines/tootsie.py fork {PHASE} --as {PHASE}-searched --set 'mixture={value}'"


num_proxies = number(
    f"a number of proxies; use one from 1 to {MOST_PROXIES}, as many as RegMix trained to fit its law",
    least=1,
    most=MOST_PROXIES,
    kind=int,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the number of proxies."""
    what = f"small runs to train (default {PROXIES}, at most {MOST_PROXIES}); at least two more than sources"
    parser.add_argument("--proxies", metavar="N", type=num_proxies, default=PROXIES, help=what)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the recipe; return its exit code."""
    return recipe.main(
        build,
        name="mixture_search",
        add_arguments=add_arguments,
        summary=summary,
        variant=lambda parsed: str(parsed.proxies),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
