"""PlacedModel: an exported model on the devices of a machine, which share the requests.

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

from runtime.model.computation import Computation, matmul_precision
from runtime.model.config import ModelConfig, Rope
from runtime.model.layers import written_out
from runtime.model.model import Model, Params
from runtime.model.placement import check_placement, parameter_specs, shardings
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.mesh import BATCH_AXES, copy_size, platform, whole_mesh
from runtime.training.objective import computation_on
from runtime.training.watchdog import Watchdog

PARAMETERS_SHARE = 0.6
"""Largest share of a device's memory for parameters; the rest is for activations and the cache."""
BY_DEVICE = PartitionSpec(BATCH_AXES)
"""Placement of arrays whose first axis is split over the devices."""
WHOLE = PartitionSpec()


class Run(NamedTuple):
    """A model and how it runs on one device."""

    model: Model
    computation: Computation


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
            mesh: by default all devices of this process, with as many copies of the parameters as fit.
            watchdog: watches the devices.
        """
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        self.mesh = _mesh(num_bytes, config) if mesh is None else mesh
        check_placement(config, self.mesh)
        self.config, self.num_devices = config, self.mesh.size
        self.compute_dtype = np.dtype(compute_dtype)
        self._watchdog = Watchdog("batch") if watchdog is None else watchdog
        self._num_waits = 0
        computation = computation_on(
            self.mesh,
            config,
            attention_kernel="chunked",
            compute_dtype=compute_dtype,
            remat="none",
            reduce_dtype="float32",
        )
        self._run = Run(config.build(), computation)
        self._frequencies = self._run.model.frequencies(rope)
        self._is_whole = copy_size(self.mesh) == 1
        self.is_written_out = self._is_whole and platform(self.mesh) == "cpu" and hasattr(params, "layers")
        if self.is_written_out:
            params = written_out(params, compute_dtype)
        specs = WHOLE if self._is_whole else parameter_specs(self._run.model)
        self.params = jax.device_put(params, shardings(specs, self.mesh))

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
        of_mesh = _program(
            function, self._run, self.mesh, self._is_whole, tuple(specs), out, donated, tuple(static.items())
        )
        return functools.partial(of_mesh, self.params, self._frequencies)

    def by_device(self, array: Any) -> Any:
        """Return arrays with their first axis split over the devices."""
        return jax.device_put(array, NamedSharding(self.mesh, BY_DEVICE))

    def fetch(self, arrays: Any) -> Any:
        """Wait for the devices; return NumPy arrays."""
        self._num_waits += 1
        with self._watchdog.awaits(self._num_waits):
            return jax.tree.map(np.asarray, arrays)


@functools.cache
def _program(
    function: Callable[..., Any],
    run: Run,
    mesh: Mesh,
    is_whole: bool,
    specs: tuple[Any, ...],
    out: Any,
    donated: tuple[int, ...],
    static: tuple[tuple[str, Any], ...],
) -> Callable[..., Any]:
    def on_device(params: Params, frequencies: Any, *arguments: Any) -> Any:
        with matmul_precision(run.computation.compute_dtype):
            return function(run, params, frequencies, *arguments, **dict(static))

    of_params = WHOLE if is_whole else parameter_specs(run.model)
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=(of_params, WHOLE, *specs), out_specs=out, check_vma=False)
    donate = tuple(2 + index for index in donated)
    return jax.jit(mapped, donate_argnums=donate, compiler_options=compiler_options(mesh))


def _mesh(num_bytes: int, config: ModelConfig) -> Mesh:
    """Return a mesh over all devices, with as many copies of the parameters as fit."""
    devices = jax.devices()
    memory = (devices[0].memory_stats() or {}).get("bytes_limit") if devices[0].platform != "cpu" else None
    sharers = [count for count in range(1, len(devices) + 1) if len(devices) % count == 0]
    fitting = (count for count in sharers if memory is None or num_bytes / count <= PARAMETERS_SHARE * memory)
    count = next(fitting, len(devices))
    return whole_mesh(replica=len(devices) // count)
