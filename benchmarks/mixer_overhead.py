"""Claim: mixer and permutation cost under 0.5 % of a step, and a learning policy under 0.1 %.

2,048 sequences a batch, 50 sources of uneven weights, each drawn in every batch. The step is that of Tootsie's 8B model
on v4-2048 at half of the chips' peak, the fastest that it could plausibly be; the time is that of one thread of this
machine, all of which runs ahead of the device. The last line is JSON.

    python benchmarks/mixer_overhead.py
"""

import platform
import statistics
import time

import numpy as np

from benchmarks.verdict import conclude
from pipelines.scales import EIGHT_B
from runtime.data.cache import TokenFormat
from runtime.data.loader import Loader
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixing.policy import Seen
from runtime.data.mixture import MixtureSchedule
from runtime.data.sampler import DataPosition

GLOBAL_BATCH_SIZE = 2_048
NUM_SOURCES = 50
BAR, BAR_OF_LEARNING = 0.005, 0.001
STEPS = 120
WARMUP_STEPS = 80
CHIPS, PEAK_FLOPS, UTILIZATION = 1_024, 275e12, 0.5
POLICIES: dict[str, MixingPolicy] = {
    "static": Static(),
    "odm_paper": OdmPaper(alpha=0.9),
    "odm_released": OdmReleased(alpha=0.5, warmup_steps=0),
    "loss_drop": LossDrop(warmup_steps=0),
}


class Sized:
    """The part of a token cache that a plan reads."""

    vocab_size, is_whole = 128_256, True
    format = TokenFormat(vocab_size=vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)

    def __init__(self, num_tokens: int) -> None:
        self.block_ends = (num_tokens,)


def step_seconds() -> float:
    """Return the seconds of one update of 2,048 sequences at the reference."""
    flops = EIGHT_B.model.flops_per_token(EIGHT_B.sequence_length) * GLOBAL_BATCH_SIZE * EIGHT_B.sequence_length
    return flops / (CHIPS * PEAK_FLOPS * UTILIZATION)


def plan_seconds(policy: MixingPolicy) -> float:
    """Return the median time to plan one batch: shares, counts, slots, places."""
    names = [f"source-{index:02d}" for index in range(NUM_SOURCES)]
    caches = {name: Sized(10**9 * (index + 1)) for index, name in enumerate(names)}
    loader = Loader(
        caches,  # type: ignore[arg-type]
        {name: f"{index:064x}" for index, name in enumerate(names)},
        MixtureSchedule.constant({name: 1.1**-index for index, name in enumerate(names)}),
        EIGHT_B.sequence_length,
        0,
        policy=policy,
    )
    numbers = np.random.default_rng(0)
    position, seconds = DataPosition(), []

    def feedback(step: int) -> dict[str, Seen]:
        losses = 3 - 0.001 * step + 0.01 * numbers.standard_normal(NUM_SOURCES)
        return {
            identity: Seen(40, 1_000, 1_000 * loss, 1_000 * loss)
            for identity, loss in zip(loader.names, losses, strict=True)
        }

    for step in range(STEPS):
        began = time.thread_time()
        _, (position,) = loader.locate(position, range(step, step + 1), GLOBAL_BATCH_SIZE, feedback=feedback)
        if step >= WARMUP_STEPS:
            seconds.append(time.thread_time() - began)
    return statistics.median(seconds)


def main() -> None:
    """Measure each policy, and print its share of a step."""
    step = step_seconds()
    planned = {name: plan_seconds(policy) for name, policy in POLICIES.items()}
    for name, seconds in planned.items():
        print(f"{name:<14} {1e3 * seconds:6.2f} ms a batch, {seconds / step:.4%} of a step of {step:.2f} s")
    learned = max(planned.values()) - planned["static"]
    ours, learning = max(planned.values()), learned / step
    figures = {
        "claim": "planning a batch of 2,048 sequences from 50 sources, as a share of a step of the 8B model on v4-2048",
        "ours": round(ours, 6),
        "reference": round(step, 3),
        "unit": "seconds",
        "ratio": round(ours / step, 6),
        "bar": BAR,
        "learning_ratio": round(learning, 6),
        "bar_of_learning": BAR_OF_LEARNING,
        "holds": ours / step <= BAR and learning <= BAR_OF_LEARNING,
        "milliseconds": {name: round(1e3 * seconds, 3) for name, seconds in planned.items()},
        "numpy": np.__version__,
        "device": f"{platform.machine()}, one thread",
    }
    conclude(figures)


if __name__ == "__main__":
    main()
