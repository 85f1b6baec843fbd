"""Compiler options follow from the devices, and the compiler knows every name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from runtime.parallel.compiler_options import compiler_options, hides_scatters


@dataclasses.dataclass(frozen=True)
class Device:
    platform: str
    device_kind: str
    process_index: int = 0
    id: int = 0


def mesh_of(platform: str, device_kind: str) -> Mesh:
    return Mesh(np.array([Device(platform, device_kind)], object), ("data_x",))


@pytest.mark.parametrize("platform", ["gpu", "cuda", "rocm"])
def test_on_a_gpu_sums_have_one_order_and_the_compiler_knows_the_options(platform: str) -> None:
    options = compiler_options(mesh_of(platform, "NVIDIA H100 80GB HBM3"))
    assert options == {
        "xla_gpu_deterministic_ops": True,
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_enable_dynamic_slice_fusion": False,
    }
    assert jax.jit(lambda values: values + 1, compiler_options=options)(jnp.zeros(2)).tolist() == [1, 1]


# That the compilers take their options, and what they change: tests/runtime/cost/test_compile_for_real.py.


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v4", "xla_tpu_reduce_scatter_collective_matmul_mode"),
        ("TPU v5", "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter"),
        ("TPU v6 lite", "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter"),
    ],
)
def test_each_generation_hides_collectives_in_its_own_way(device_kind: str, name: str) -> None:
    assert name in (compiler_options(mesh_of("tpu", device_kind)) or {})
    assert hides_scatters(device_kind)


@pytest.mark.parametrize(("platform", "device_kind"), [("tpu", "TPU v5 lite"), ("tpu", "TPU7x")])
def test_others_are_compiled_as_the_compiler_likes(platform: str, device_kind: str) -> None:
    assert compiler_options(mesh_of(platform, device_kind)) is None
    assert not hides_scatters(device_kind)


def test_a_cpu_uses_whole_registers_and_the_compiler_knows_the_option() -> None:
    options = compiler_options(mesh_of("cpu", "cpu"))
    assert options == {"xla_cpu_prefer_vector_width": 512}
    assert jax.jit(lambda values: values + 1, compiler_options=options)(jnp.zeros(2)).tolist() == [1, 1]
