"""Claim: the loader gives tokens at least 20 times as fast as the laptop's Tootsie trains on them.

Ours is the loader alone, in one thread, reading six cold caches of random ids by a mixture. The reference is
the laptop's train step on the same batch shape, compiled and warm, in this process. Neither is measured
while the other runs, so the figure is a ratio of speeds and not of what is left over.

    python benchmarks/loader_feeds_training.py [--tokens 4000000]
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np

from benchmarks.laptop_model import LaptopStep, loader_in
from benchmarks.verdict import conclude
from pipelines.scales import LAPTOP
from runtime.data.loader import LoadedBatch, Loader
from runtime.data.sampler import DataPosition
from runtime.training.train_step import Hyperparameters

BAR = 20.0
LOADER_STEPS = 400
TRAIN_STEPS = 4
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4_000_000, help="in each of six sources")
    tokens = parser.parse_args().tokens
    global_batch_size = LAPTOP.batches[-1].global_batch_size
    tokens_a_step = global_batch_size * LAPTOP.sequence_length
    with tempfile.TemporaryDirectory() as folder:
        # A loader of its own each time: nothing that an earlier one read was checked by it.
        loading = [
            _seconds_of_loading(loader_in(Path(folder), tokens_a_source=tokens), global_batch_size)
            for _ in range(REPEATS)
        ]
        batch, _ = loader_in(Path(folder), tokens_a_source=tokens).batch(DataPosition(), 0, global_batch_size)
    training = _seconds_of_training(batch)
    ours, reference = tokens_a_step / min(loading), tokens_a_step / training
    print(f"loader, best of {REPEATS}: {[round(tokens_a_step / seconds) for seconds in loading]} tokens/s")
    print(f"train step, best of {TRAIN_STEPS}: {reference:.0f} tokens/s")
    line = {
        "claim": "loader tokens/s against those of the laptop's train step",
        "ours": round(ours),
        "reference": round(reference),
        "ratio": round(ours / reference, 1),
        "bar": BAR,
        "holds": ours / reference >= BAR,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "device": f"{jax.devices()[0].platform} {platform.machine()}, {os.cpu_count()} cores",
    }
    conclude(line)


def _seconds_of_loading(loader: Loader, global_batch_size: int) -> float:
    """Return seconds a batch."""
    position = DataPosition()
    began = time.perf_counter()
    for step in range(LOADER_STEPS):
        _, position = loader.batch(position, step, global_batch_size)
    return (time.perf_counter() - began) / LOADER_STEPS


def _seconds_of_training(batch: LoadedBatch) -> float:
    """Return seconds a step, compiled and warm."""
    laptop = LaptopStep(LAPTOP.batches[-1])
    state = laptop.state(averages=("averaged",))
    hyperparameters = Hyperparameters(1e-3, 0.05, 0.9, 0.95, 1e-8, 1.0, 1e-4, average_decays=(0.99,))
    seconds = []
    for _ in range(1 + TRAIN_STEPS):
        began = time.perf_counter()
        state, metrics = laptop.step(state, batch.tokens, batch.segment_ids, hyperparameters)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
