"""Compiler options by device; the compiled programs showed the effect of each."""

from jax.sharding import Mesh

from runtime.parallel.mesh import device_kind, platform

_BESIDE_PRODUCTS: dict[str, str | bool | int] = {
    # Without it every gather of a layer holds the chip up. v5e hides gathers in its products by itself.
    "xla_enable_async_all_gather": "true",
    # Cuts products whose gradients are summed in bfloat16 into parts, which go round the ring while the next is
    # computed. On v5e it holds the chip up longer: its permutes are not asynchronous.
    "xla_tpu_reduce_scatter_collective_matmul_mode": "POST_SPMD",
}
_ON_SPARSE_CORES: dict[str, str | bool | int] = {
    # Sparse cores, which a dense model leaves idle, run collectives beside the products and hide more than half of the
    # wires' time (docs/explanation/tpu.md). On v4 they hide nothing and replace the asynchronous gathers.
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
    # Otherwise cuDNN's attention adds in the order in which threads arrive, and products use the kernel that was
    # fastest in this process: a resumed run would differ from the undisturbed one.
    "xla_gpu_deterministic_ops": True,
    # A deterministic XLA tries no tiles for products by Triton, and takes 16 x 8 for most. cuBLAS's choice depends on
    # shapes and device only.
    "xla_gpu_enable_triton_gemm": False,
    # XLA of JAX 0.11 would compute twice what a loop both saves and uses: gate and up of each layer, 8 % of a 1.5B's
    # step.
    "xla_gpu_enable_dynamic_slice_fusion": False,
}

_ON_CPU: dict[str, str | bool | int] = {
    # XLA's own loops, half of a laptop's step, would use half of a 512-bit register. Without such registers the option
    # changes nothing.
    "xla_cpu_prefer_vector_width": 512,
}


def compiler_options(mesh: Mesh) -> dict[str, str | bool | int] | None:
    """Return the options for the programs of `mesh`, beyond the defaults."""
    match platform(mesh):
        case "gpu":
            return _ON_GPU
        case "cpu":
            return _ON_CPU
    return _BY_TPU.get(device_kind(mesh))


def hides_scatters(kind: str) -> bool:
    """Return whether programs for that kind of device (JAX's name) have an option that hides reduce-scatters."""
    return kind in _BY_TPU
