"""Online mixing: the laptop's Tootsie under every mixing policy and three seeds, with equal tokens.

    python pipelines/online_mixing.py --corpus DIR --prefix mixing-runs --backend local

Each `DIR/*.jsonl.gz` is a source. The written mixture is the recipe's last one (starling) in the names of these
sources. docs/explanation/online-mixing.md has the results of one run.
"""

import argparse
import sys
from collections.abc import Sequence

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from pipelines import mixtures, recipe
from pipelines.corpus import weights_by_source
from pipelines.scales import LAPTOP, BatchSize
from pipelines.sources import OWN_FILES, corpus_sources
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.model.config import LLAMA2_ROPE
from runtime.optim.schedule import Cycles, WsdS

STEPS = 500
SEEDS = (0, 1, 2)
MODEL = LAPTOP.model
PEAK_LEARNING_RATE = LAPTOP.rate * 1.7e-3
BATCH = BatchSize(16, 8)
EVALUATION_TOKENS = 16_384
"""The rate that the recipe keeps longest."""
POLICIES: dict[str, MixingPolicy] = {
    "static": Static(),
    # The paper warms up for 1 % of a run and the released code for 2 %.
    "odm_paper": OdmPaper(alpha=0.9, warmup_steps=STEPS // 100),
    "odm_released": OdmReleased(alpha=0.5, warmup_steps=STEPS // 50),
    "loss_drop": LossDrop(warmup_steps=STEPS // 10, window_updates=48),
}


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Build a tokenizer over all sources, a cache of each, and a run and an evaluation for each policy and seed."""
    sources = {
        name: source
        for name, source in corpus_sources(arguments.corpus).items()
        if not name.endswith("_validation")  # held out by its publisher
    }
    documents = {name: recipe.documents(name, source.fetch, source.formats[0]) for name, source in sources.items()}
    tokenizer = recipe.tokenizer(documents, vocab_size=MODEL.vocab_size, bytes_per_source=1 << 19)
    sizes = {name: (source.role, source.size_in_bytes) for name, source in sources.items()}
    prior = weights_by_source(mixtures.STARLING, sizes)
    mixed = {name: documents[name] for name in prior}
    caches = recipe.token_caches(mixed, tokenizer, validation_share=0.03)
    phases = [
        _phase(f"{name}-{seed}", policy, seed, prior, caches) for name, policy in POLICIES.items() for seed in SEEDS
    ]
    return recipe.evaluate(phases, max_tokens_per_domain=EVALUATION_TOKENS)


def _phase(name: str, policy: MixingPolicy, seed: int, prior: dict[str, float], caches: dict[str, Step]) -> Step:
    cycle = Cycles(0, STEPS, STEPS // 5)
    return recipe.phase(
        name,
        mixture=prior,
        mixing=policy,
        caches=caches,
        seed=seed,
        until_step=STEPS,
        model=MODEL,
        rope=LLAMA2_ROPE,
        sequence_length=LAPTOP.sequence_length,
        global_batch_size=BATCH.global_batch_size,
        num_microbatches=BATCH.num_microbatches,
        remat=LAPTOP.remat,
        learning_rate=WsdS(PEAK_LEARNING_RATE, PEAK_LEARNING_RATE / 10, warmup_steps=25, cycles=(cycle,)),
        weight_decay=0.05,
        z_loss=1e-4,
        compute_dtype=LAPTOP.compute_dtype,
        checkpoint_every_steps=STEPS,
        resources=Cpu(2),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option of the text's folder."""
    own = f"train on the {' '.join(OWN_FILES)} of DIR, each a source"
    parser.add_argument("--corpus", metavar="DIR", required=True, help=own)


if __name__ == "__main__":
    sys.exit(recipe.main(build, name="online_mixing", add_arguments=add_arguments, summary=None))
