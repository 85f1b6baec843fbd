"""Online mixing: the laptop's Tootsie under every mixing policy and three seeds, with equal tokens.

    python pipelines/online_mixing.py --corpus DIR --prefix mixing-runs --backend local

Each `DIR/*.jsonl.gz` is a source. The written mixture is the recipe's last one (starling) in the names of these
sources. docs/explanation/online-mixing.md has the results of one run.
"""

if __name__ == "__main__":  # first: the other imports take half a second
    from marin_dag.run.interrupts import install_interrupt_handler

    install_interrupt_handler()

import argparse
import sys
from collections.abc import Sequence

from marin_dag.cli.main import main
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from pipelines import curves_command, mixtures, stalls_command
from pipelines.mix_command import command
from pipelines.roles import weights_by_source
from pipelines.scales import LAPTOP
from pipelines.source import Source
from pipelines.sources import OWN_FILES, corpus_sources
from pipelines.timeline import lint
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LLAMA2_ROPE
from runtime.optim.schedule import Cycles, WsdS
from steps.download import DownloadConfig, download
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.extract import ExtractConfig, extract
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_phase import train_phase
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer

STEPS = 500
SEEDS = (0, 1, 2)
MODEL = LAPTOP.model
PEAK_LEARNING_RATE = LAPTOP.rate * 1.7e-3
"""The rate that the recipe keeps longest."""
POLICIES: dict[str, MixingPolicy] = {
    "static": Static(),
    # The paper warms up for 1 % of a run and the released code for 2 %.
    "odm_paper": OdmPaper(alpha=0.9, warmup_steps=STEPS // 100),
    "odm_released": OdmReleased(alpha=0.5, warmup_steps=STEPS // 50),
    "loss_drop": LossDrop(warmup_steps=STEPS // 10, window_updates=48),
}
OWN_COMMANDS = (command(), stalls_command.COMMAND, curves_command.COMMAND)


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Build a tokenizer over all sources, a cache of each, and a run and an evaluation for each policy and seed."""
    sources = {
        name: source
        for name, source in corpus_sources(arguments.corpus).items()
        if not name.endswith("_validation")  # held out by its publisher
    }
    documents = {name: _documents_of(source) for name, source in sources.items()}
    tokenizer = train_tokenizer(
        "tokenizer",
        TrainTokenizerConfig(documents=documents, vocab_size=MODEL.vocab_size, bytes_per_source=1 << 19),
    )
    sizes = {name: (source.role, source.size_in_bytes) for name, source in sources.items()}
    prior = weights_by_source(mixtures.STARLING, sizes)
    caches = {
        name: tokenize(
            f"tokenize/{name}",
            TokenizeConfig(documents=documents[name], tokenizer=tokenizer, validation_share=0.03),
        )
        for name in prior
    }
    phases = {
        name: {str(seed): _phase(f"train/{name}-{seed}", policy, seed, prior, caches) for seed in SEEDS}
        for name, policy in POLICIES.items()
    }
    return [
        ema_eval(
            f"ema_eval/{name}-{seed}",
            EmaEvalConfig(phase=phase, caches=caches, max_tokens_per_domain=LAPTOP.evaluation_tokens),
        )
        for name, by_seed in phases.items()
        for seed, phase in by_seed.items()
    ]


def _documents_of(source: Source) -> Step:
    fetched = download(f"download/{source.name}", DownloadConfig(fetch=source.fetch))
    return extract(f"extract/{source.name}", ExtractConfig(download=fetched, formats=source.formats))


def _phase(name: str, policy: MixingPolicy, seed: int, prior: dict[str, float], caches: dict[str, Step]) -> Step:
    config = TrainPhaseConfig(
        start=None,
        until_step=STEPS,
        model=MODEL,
        rope=LLAMA2_ROPE,
        sequence_length=LAPTOP.sequence_length,
        global_batch_size=LAPTOP.batches[-1].global_batch_size,
        num_microbatches=LAPTOP.batches[-1].num_microbatches,
        remat=LAPTOP.remat,
        learning_rate=WsdS(
            PEAK_LEARNING_RATE, PEAK_LEARNING_RATE / 10, warmup_steps=25, cycles=(Cycles(0, STEPS, STEPS // 5),)
        ),
        weight_decay=0.05,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        max_norm=1.0,
        z_loss=1e-4,
        mixture=MixtureSchedule.constant(prior),
        mixing=policy,
        caches=caches,
        seed=seed,
        compute_dtype=LAPTOP.compute_dtype,
        checkpoint_every_steps=STEPS,
    )
    return train_phase(name, config, resources=Cpu(2))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option of the text's folder."""
    own = f"train on the {' '.join(OWN_FILES)} of DIR, each a source"
    parser.add_argument("--corpus", metavar="DIR", required=True, help=own)


if __name__ == "__main__":
    sys.exit(
        main(
            build,
            add_arguments=add_arguments,
            name="online_mixing",
            commands=OWN_COMMANDS,
            lint=lint,
        )
    )
