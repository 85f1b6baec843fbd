"""Options of the TPU compiler, by generation: each is here because the scheduled program showed its effect."""

from jax.sharding import Mesh

_ASYNC_GATHERS = {
    # Without it every gather of a layer holds the chip up. v5e carries gathers inside its products by itself; for every
    # other generation the compiler refuses to ("not supported/recommended on platforms other than TPU v5e ... incorrect
    # results, hang").
    "xla_enable_async_all_gather": "true",
}
_ON_SPARSE_CORES = {
    # Without them every collective holds the chip up. Sparse cores, which a dense model leaves idle, run them beside
    # the products: more than half of the wires' time is hidden then, scatters included (docs/tpu.md). On v4 they take
    # the asynchronous gathers away and hide nothing.
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
}
_BY_DEVICE_KIND = {
    "TPU v4": _ASYNC_GATHERS,
    "TPU v5": _ON_SPARSE_CORES,
    "TPU v5p": _ON_SPARSE_CORES,
    "TPU v6 lite": _ON_SPARSE_CORES,
    "TPU v6e": _ON_SPARSE_CORES,
}


def compiler_options(mesh: Mesh) -> dict[str, str] | None:
    """What to compile the programs of `mesh` with, beyond the defaults."""
    return _BY_DEVICE_KIND.get(str(mesh.devices.flat[0].device_kind))
