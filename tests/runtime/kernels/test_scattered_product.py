"""The kernel that forms and scatters gradients in one: on simulated devices, what `psum_scatter` gives."""

import pathlib

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from runtime.kernels.block_sizes import MIB
from runtime.kernels.kernel_shape import Devices, KernelShape
from runtime.kernels.scatter_blocks import (
    ScatterBlocks,
    check_scatter_kernel,
    layer_scatter_blocks,
    scatter_blocks,
)
from runtime.model.llama.config import LlamaConfig
from runtime.parallel.mesh import AXES, make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.kernel_choice import scatter_blocks as described_scatter
from runtime.training.objective import computation_on
from tests.catalogue import expect_error
from tests.conftest import OPTIMIZATION
from tests.simulated_devices import report_of

WITHOUT_A_PASS = "--xla_disable_hlo_passes=while-loop-invariant-code-motion"
"""Skipped with JAX 0.12, which leaves a copy of a loop that calls Python: kernels of the check ran dozens of times."""
EIGHT_B = {"num_devices": 16, "num_tokens": 8192, "scattered": 4096, "item_bytes": 2, "sum_bytes": 2}


@pytest.fixture(scope="module")
def report() -> dict:
    # NPROC: threads of XLA; a simulated device holds some while it waits for its neighbours.
    # Optimised: the products of the check before a phase are the only large ones of the suite.
    script = pathlib.Path(__file__).with_name("four_devices.py")
    return report_of(script, num_devices=4, flags=f"{OPTIMIZATION}=2 {WITHOUT_A_PASS}", NPROC="32")


def test_sums_are_those_of_the_whole_product(report: dict) -> None:
    assert report["sums"] < 1e-5


def test_no_device_reaches_for_what_another_is_using(report: dict) -> None:
    assert not report["races"]


def test_no_call_leaves_a_semaphore_up_for_the_next(report: dict) -> None:
    assert report["output"] == ""


def test_gradients_of_a_model_on_a_torus_are_those_of_the_compiler_s_scatters(report: dict) -> None:
    matrices = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert matrices < set(report["gradients"])
    assert all(far < 1e-5 for far in report["gradients"].values())


def test_a_run_begins_where_the_devices_sum_right_and_is_refused_where_they_do_not(report: dict) -> None:
    errors = report["checks"]
    assert errors.pop("as it is") == ""
    assert set(errors) == {"the part of another, after a right one", "without one device"}
    for message in errors.values():
        assert "along data_x of the mesh" in message and "gradients would be wrong" in message


def test_the_8b_takes_the_largest_blocks_and_more_tokens_smaller_ones() -> None:
    assert scatter_blocks("TPU v5e", columns=14336, **EIGHT_B) == ScatterBlocks(512, 2048, 64 * MIB)
    assert scatter_blocks("TPU v5e", columns=14336, **EIGHT_B | {"num_tokens": 16384}).columns == 256
    assert scatter_blocks("TPU v5e", columns=768, **EIGHT_B).columns == 128  # half of 768 is 3 blocks of 128


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("TPU v4", {}),
        ("TPU v5e", {"num_tokens": 65536}),
        ("TPU v5e", {"num_devices": 64}),
        ("TPU v5e", {"num_tokens": 100}),
        ("TPU v5e", {"num_devices": 1}),
    ],
)
def test_a_shape_that_the_kernel_does_not_take_is_refused_with_the_reason(kind: str, changed: dict[str, int]) -> None:
    with expect_error(ValueError):
        scatter_blocks(kind, columns=1024, **EIGHT_B | changed)


@pytest.fixture
def eight_b() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=128, hidden_size=4096, intermediate_size=14336, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=4096,
    )  # fmt: skip


def test_each_matrix_of_a_layer_is_looked_at_as_the_model_axis_leaves_it(eight_b: LlamaConfig) -> None:
    sizes = {"num_devices": 16, "num_tokens": 8192, "item_bytes": 2, "sum_bytes": 2}
    assert set(layer_scatter_blocks("TPU v5e", eight_b, model_parallel=4, **sizes)) == {1024, 256, 3584}
    with expect_error(ValueError):
        layer_scatter_blocks("TPU v5e", eight_b, model_parallel=8, **sizes)


def test_a_run_logs_the_parts_in_which_a_layers_gradients_are_sent(eight_b: LlamaConfig) -> None:
    shape = KernelShape.of(
        Devices(platform="tpu", kind="TPU v5 lite", num_devices=256),
        eight_b,
        num_rows=512,
        sequence_length=4096,
        compute_dtype="bfloat16",
    )
    devices = np.broadcast_to(np.array(jax.devices()[:1]), (1, 16, 16, 1, 1, 1))
    mesh = Mesh(devices, AXES)
    assert described_scatter("xla", mesh, eight_b, shape, "bfloat16") == "by the compiler"
    assert described_scatter("pallas_tpu", mesh, eight_b, shape, "bfloat16") == (
        "4096 columns by 512 each way and 2048 tokens, 1024 columns by 512 each way and 2048 tokens, "
        "14336 columns by 512 each way and 2048 tokens"
    )


def test_the_kernel_is_refused_where_no_gradient_is_scattered(eight_b: LlamaConfig) -> None:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    with expect_error(ValueError):
        computation_on(
            mesh, eight_b, attention_kernel="reference", compute_dtype="float32", remat="full", reduce_dtype="float32",
            scatter_kernel="pallas_tpu",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("platform", "scatter_kernel"),
    [
        ("cpu", "pallas_tpu"),
        ("tpu", "ring"),
    ],
)
def test_a_scatter_kernel_that_cannot_run_is_an_error_with_the_reason(platform: str, scatter_kernel: str) -> None:
    with expect_error(ValueError):
        check_scatter_kernel(platform, scatter_kernel)
    check_scatter_kernel(platform, "xla")
