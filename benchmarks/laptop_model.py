"""The laptop's train step and a loader over random ids, as the benchmarks of the loop and of the loader take them."""

from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from marin_dag.graph.resources import Cpu
from pipelines.scales import LAPTOP, BatchSize
from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.data.loader import Loader
from runtime.data.mixture import MixtureSchedule
from runtime.kernels.kernel_shape import KernelShape
from runtime.model.config import LLAMA2_ROPE
from runtime.parallel.hosts import open_cores
from runtime.parallel.mesh import devices_of, mesh_of_cores
from runtime.training.kernel_choice import default_kernels
from runtime.training.state import TrainState, initial_state
from runtime.training.train_step import ProgramOptions, TrainStep, build_train_step

NUM_SOURCES = 6
DOCUMENT_TOKENS = 700


def laptop_mesh() -> Mesh:
    """Return the mesh of a phase of the laptop's recipe; call it before anything else of JAX."""
    resources = LAPTOP.main_resources
    assert isinstance(resources, Cpu)
    open_cores(resources.num_devices)
    return mesh_of_cores(resources.num_devices)


class LaptopStep:
    """The train step as phases with batches of that size build it, and states for it."""

    def __init__(self, size: BatchSize, mesh: Mesh | None = None) -> None:
        """Build the step on the mesh of the laptop's recipe, or on another one."""
        self._mesh = laptop_mesh() if mesh is None else mesh
        kernels = default_kernels(
            KernelShape.of(
                devices_of(self._mesh),
                LAPTOP.model,
                num_rows=size.global_batch_size,
                sequence_length=LAPTOP.sequence_length,
                compute_dtype=LAPTOP.compute_dtype,
                num_microbatches=size.num_microbatches,
            )
        )
        options = ProgramOptions(
            attention_kernel=kernels.attention,
            loss_kernel=kernels.loss,
            compute_dtype=LAPTOP.compute_dtype,
            remat=LAPTOP.remat,
            num_microbatches=size.num_microbatches,
        )
        self.step: TrainStep = build_train_step(LAPTOP.model, LLAMA2_ROPE, self._mesh, options)

    def state(self, *, averages: tuple[str, ...] = ()) -> TrainState:
        """Return a new state; the step uses it up."""
        return initial_state(LAPTOP.model, 0, self._mesh, averages=averages)


def loader_in(folder: Path, *, tokens_a_source: int) -> Loader:
    """Return a new loader over six sources of random ids, written where they are missing."""
    names = [f"source-{index}" for index in range(NUM_SOURCES)]
    for index, name in enumerate(names):
        if not (folder / name).exists():
            _write_cache(folder / name, index, tokens_a_source)
    return Loader(
        {name: TokenCache.open(str(folder / name)) for name in names},
        {name: f"identity of {name}" for name in names},
        MixtureSchedule.constant({name: 1.0 + index for index, name in enumerate(names)}),
        LAPTOP.sequence_length,
        seed=0,
    )


def _write_cache(path: Path, seed: int, num_tokens: int) -> None:
    vocab_size = LAPTOP.model.vocab_size
    token_format = TokenFormat(vocab_size=vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
    ids = np.random.default_rng(seed).integers(1, vocab_size, num_tokens)
    with token_cache_writer(str(path), token_format, np.ones(vocab_size, np.int32)) as writer:
        writer.add(np.array_split(ids, num_tokens // DOCUMENT_TOKENS), num_bytes=3 * num_tokens)
