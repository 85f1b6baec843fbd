"""PlacedModel: an exported model on the devices of a machine or a gang, which share the requests.

Each device holds all parameters where they fit. Otherwise devices share as many whole copies as fit, in equal parts,
and gather each layer when they use it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from runtime.kernels.attention_paged import cache_kernel_of
from runtime.model.computation import Computation, matmul_precision
from runtime.model.config import ModelConfig, Rope
from runtime.model.layers import written_out
from runtime.model.model import Model, Params
from runtime.model.placement import check_placement, parameter_specs, shardings
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.hosts import whole
from runtime.parallel.mesh import BATCH_AXES, copy_size, make_mesh, platform, present_machines
from runtime.training.objective import computation_on
from runtime.training.watchdog import Watchdog

BY_DEVICE = PartitionSpec(BATCH_AXES)
"""Placement of arrays whose first axis is split over the devices."""
WHOLE = PartitionSpec()


class ModelProgram(NamedTuple):
    """A model and how it runs on one device."""

    model: Model
    computation: Computation
    cache_reason: str
    """Why the computation has its kernel for the cache."""

    @classmethod
    def on(cls, mesh: Mesh, config: ModelConfig, compute_dtype: DTypeLike) -> "ModelProgram":
        """Return how the model runs on the devices of `mesh`."""
        kernel, reason = cache_kernel_of(
            platform(mesh), head_dim=config.head_dim, compute_dtype=np.dtype(compute_dtype).name
        )
        computation = computation_on(mesh, config, attention_kernel="chunked", compute_dtype=compute_dtype)
        return cls(config.build(), computation._replace(cache_kernel=kernel), reason)

    @property
    def kernels(self) -> dict[str, str]:
        """Kernels with their reasons, for the record of a step."""
        return {
            "attention": "chunked: blocks of queries, for continuations that share a context",
            "attention to the cache": f"{self.computation.cache_kernel}: {self.cache_reason}",
        }


class PlacedModel:
    """Parameters on a mesh, and the compiled programs over them."""

    def __init__(
        self,
        params: Params,
        config: ModelConfig,
        rope: Rope,
        *,
        compute_dtype: DTypeLike,
        mesh: Mesh | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Place the parameters.

        Args:
            params: the parameters, in any memory.
            config: the model's shape.
            rope: its rotary embedding.
            compute_dtype: dtype of activations, products and cache.
            mesh: by default all devices of this run, with as many copies of the parameters as fit.
            watchdog: watches the devices.
        """
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        self.mesh = _mesh(num_bytes) if mesh is None else mesh
        check_placement(config, self.mesh)
        self.config, self.num_devices = config, self.mesh.size
        self.compute_dtype = np.dtype(compute_dtype)
        self._watchdog = Watchdog("batch") if watchdog is None else watchdog
        self._num_waits = 0
        self.run = ModelProgram.on(self.mesh, config, compute_dtype)
        self._frequencies = self.run.model.frequencies(rope)
        self.is_written_out = self.devices_of_a_copy == 1 and platform(self.mesh) == "cpu" and hasattr(params, "layers")
        if self.is_written_out:
            params = written_out(params, compute_dtype)
        specs = WHOLE if self.devices_of_a_copy == 1 else parameter_specs(self.run.model)
        self.params = _placed(params, shardings(specs, self.mesh))

    @property
    def devices_of_a_copy(self) -> int:
        """Number of devices that share one copy of the parameters."""
        return copy_size(self.mesh)

    def program(
        self,
        function: Callable[..., Any],
        specs: Sequence[Any],
        out: Any,
        *,
        donated: tuple[int, ...] = (),
        **static: Any,
    ) -> Callable[..., Any]:
        """Compile `function(run, params, frequencies, *arguments, **static)` for each device's part of the arguments.

        Args:
            function: a function at module level, so that equal programs are compiled once.
            specs: placement of each argument.
            out: placement of the result.
            donated: indices of the arguments whose memory the result takes.
            static: hashable arguments that the program is compiled for.
        """
        of_mesh = program_of(function, self.run, self.mesh, tuple(specs), out, donated, tuple(static.items()))
        return functools.partial(of_mesh, self.params, self._frequencies)

    def by_device(self, array: Any) -> Any:
        """Return arrays with their first axis split over the devices; every host must call this with all of them."""
        return _placed(array, NamedSharding(self.mesh, BY_DEVICE))

    def check_tokens(self, name: str, tokens: Sequence[int]) -> None:
        """Raise ValueError for a token that the model does not know; `name` is what has the tokens."""
        if not all(0 <= token < self.config.vocab_size for token in tokens):
            raise ValueError(
                f"{name}: token {max(tokens)} is above the model's vocab_size of {self.config.vocab_size}; use the "
                "tokenizer that the model was trained with."
            )

    def fetch(self, arrays: Any) -> Any:
        """Wait for the devices; return whole NumPy arrays. Every host must call this."""
        self._num_waits += 1
        with self._watchdog.awaits(self._num_waits):
            return jax.tree.map(whole, arrays)


@functools.cache
def program_of(
    function: Callable[..., Any],
    run: ModelProgram,
    mesh: Mesh,
    specs: tuple[Any, ...],
    out: Any,
    donated: tuple[int, ...] = (),
    static: tuple[tuple[str, Any], ...] = (),
) -> Callable[..., Any]:
    """Return a program that takes parameters and frequencies first; equal arguments return the same program."""

    def on_device(params: Params, frequencies: Any, *arguments: Any) -> Any:
        with matmul_precision(run.computation.compute_dtype):
            return function(run, params, frequencies, *arguments, **dict(static))

    of_params = WHOLE if copy_size(mesh) == 1 else parameter_specs(run.model)
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(of_params, WHOLE, *specs), out_specs=out, check_vma=False)
    donate = tuple(2 + index for index in donated)
    return jax.jit(mapped, donate_argnums=donate, compiler_options=compiler_options(mesh))


def _placed(arrays: Any, sharding: Any) -> Any:
    """Return arrays on the devices of all hosts; every host must have the whole arrays."""
    if jax.process_count() == 1:
        return jax.device_put(arrays, sharding)

    def place(array: Any, of_array: NamedSharding) -> jax.Array:
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, of_array, lambda index: values[index])

    if isinstance(sharding, NamedSharding):
        return jax.tree.map(lambda array: place(array, sharding), arrays)
    return jax.tree.map(place, arrays, sharding)


def _mesh(num_bytes: int) -> Mesh:
    """Return a mesh over all devices, with as many copies of the parameters as fit."""
    own = jax.local_devices()[0]
    # JAX numbers slices of GPUs too, by their switches; a plan knows none (`machines_of`).
    slices = {getattr(device, "slice_index", None) for device in jax.devices() if own.platform == "tpu"}
    machines, devices = present_machines(max(1, len(slices)))
    memory = None if own.platform == "cpu" else (own.memory_stats() or {}).get("bytes_limit")
    return make_mesh(machines.layout_with_copies(num_bytes, memory).shape, devices)
