"""Options of the compiler, by device: each is here because the compiled program showed its effect."""

from jax.sharding import Mesh

from runtime.parallel.mesh import device_kind, platform

_BESIDE_PRODUCTS: dict[str, str | bool | int] = {
    # Without it every gather of a layer holds the chip up. v5e carries gathers inside its products by itself; for every
    # other generation the compiler refuses to ("not supported/recommended on platforms other than TPU v5e ... incorrect
    # results, hang").
    "xla_enable_async_all_gather": "true",
    # Of the gradients that are summed in bfloat16, the product is cut into parts, which go round the ring while the
    # next is computed. On v5e the same holds the chip up longer: its permutes are not asynchronous.
    "xla_tpu_reduce_scatter_collective_matmul_mode": "POST_SPMD",
}
_ON_SPARSE_CORES: dict[str, str | bool | int] = {
    # Without them every collective holds the chip up. Sparse cores, which a dense model leaves idle, run them beside
    # the products: more than half of the wires' time is hidden then, scatters included (docs/tpu.md). On v4 they take
    # the asynchronous gathers away and hide nothing.
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
}
_BY_TPU = {
    "TPU v4": _BESIDE_PRODUCTS,
    "TPU v5": _ON_SPARSE_CORES,
    "TPU v5p": _ON_SPARSE_CORES,
    "TPU v6 lite": _ON_SPARSE_CORES,
    "TPU v6e": _ON_SPARSE_CORES,
}
_ON_GPU: dict[str, str | bool | int] = {
    # Else cuDNN's attention is summed in whatever order threads arrive, and products by whichever kernel was fastest
    # when this process tried them: a resumed run would not be the undisturbed one.
    "xla_gpu_deterministic_ops": True,
    # XLA then tries no tiles for the products that it gives to Triton, and takes 16 x 8 for most. cuBLAS's own choice
    # depends on shapes and device only.
    "xla_gpu_enable_triton_gemm": False,
    # Else XLA of JAX 0.11 computes a product twice where a loop keeps it and goes on with it: gate and up of each layer,
    # 8 % of a 1.5B's step.
    "xla_gpu_enable_dynamic_slice_fusion": False,
}

_ON_CPU: dict[str, str | bool | int] = {
    # Else what XLA writes itself, which is half of a laptop's step, uses half of a register where it has 512 bits. On a
    # processor without such registers the option changes nothing.
    "xla_cpu_prefer_vector_width": 512,
}


def compiler_options(mesh: Mesh) -> dict[str, str | bool | int] | None:
    """What to compile the programs of `mesh` with, beyond the defaults."""
    match platform(mesh):
        case "gpu":
            return _ON_GPU
        case "cpu":
            return _ON_CPU
    return _BY_TPU.get(device_kind(mesh))


def hides_scatters(kind: str) -> bool:
    """Whether programs for devices of that kind (JAX's name) are compiled with an option that hides reduce-scatters."""
    return kind in _BY_TPU
