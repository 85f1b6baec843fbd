"""Claim: the loader gives tokens at least 20 times as fast as the laptop's Tootsie trains on them.

Ours is the loader alone, in one thread, reading six cold caches of random ids by a mixture. The reference is
the laptop's train step on the same batch shape, compiled and warm, in this process. Neither is measured
while the other runs, so the figure is a ratio of speeds and not of what is left over.

    python benchmarks/loader_feeds_training.py
"""

import json
import os
import platform
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from pipelines.scales import LAPTOP
from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import TokenCacheWriter
from runtime.data.loader import Batch, DataPosition, Loader
from runtime.data.mixture import MixtureSchedule
from runtime.kernels.choice import default_kernels
from runtime.model.config import LLAMA2_ROPE
from runtime.parallel.mesh import MeshShape, make_mesh
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters, build_train_step

BAR = 20.0
TOKENS_A_SOURCE = 4_000_000
NUM_SOURCES = 6
LOADER_STEPS = 400
TRAIN_STEPS = 4
REPEATS = 3


def main() -> None:
    global_batch_size = LAPTOP.batch_sizes[-1]
    tokens_a_step = global_batch_size * LAPTOP.sequence_length
    with tempfile.TemporaryDirectory() as folder:
        # A loader of its own each time: nothing that an earlier one read is in its pool of chunks.
        loading = [_seconds_of_loading(_loader(Path(folder)), global_batch_size) for _ in range(REPEATS)]
        batch, _ = _loader(Path(folder)).batch(DataPosition(), 0, global_batch_size)
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
    print(json.dumps(line))


def _loader(folder: Path) -> Loader:
    names = [f"source-{index}" for index in range(NUM_SOURCES)]
    for index, name in enumerate(names):
        if not (folder / name).exists():
            _write_cache(folder / name, seed=index)
    return Loader(
        {name: TokenCache.open(str(folder / name)) for name in names},
        {name: f"identity of {name}" for name in names},
        MixtureSchedule.constant({name: 1.0 + index for index, name in enumerate(names)}),
        LAPTOP.sequence_length,
        seed=0,
    )


def _write_cache(path: Path, seed: int) -> None:
    vocab_size = LAPTOP.model.vocab_size
    token_format = TokenFormat(vocab_size=vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
    ids = np.random.default_rng(seed).integers(1, vocab_size, TOKENS_A_SOURCE)
    with TokenCacheWriter(str(path), token_format, np.ones(vocab_size, np.int32)) as writer:
        writer.add(np.array_split(ids, TOKENS_A_SOURCE // 700), num_bytes=3 * TOKENS_A_SOURCE)


def _seconds_of_loading(loader: Loader, global_batch_size: int) -> float:
    """Seconds a batch."""
    position = DataPosition()
    began = time.perf_counter()
    for step in range(LOADER_STEPS):
        _, position = loader.batch(position, step, global_batch_size)
    return (time.perf_counter() - began) / LOADER_STEPS


def _seconds_of_training(batch: Batch) -> float:
    """Seconds a step, compiled and warm."""
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    kernels = default_kernels(jax.devices()[0].platform, sequence_length=LAPTOP.sequence_length)
    train_step = build_train_step(
        LAPTOP.model,
        LLAMA2_ROPE,
        mesh,
        attention_kernel=kernels.attention,
        loss_kernel=kernels.loss,
        compute_dtype=LAPTOP.compute_dtype,
        remat="none",
    )
    state = initial_state(LAPTOP.model, 0, mesh, with_average=True)
    told = Hyperparameters(1e-3, 0.05, 0.9, 0.95, 1e-8, 1.0, 1e-4, 0.99)
    seconds = []
    for _ in range(1 + TRAIN_STEPS):
        began = time.perf_counter()
        state, metrics = train_step(state, batch.tokens, batch.segment_ids, told)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
