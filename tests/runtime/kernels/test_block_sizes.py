"""Block sizes: rows fit their chip, other shapes follow the rule, and nothing is answered with what will not fit."""

import re

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, PartitionSpec

from benchmarks.compile_matrix import MODELS
from runtime.kernels.block_sizes import (
    generation_here,
    splash_blocks,
    splash_bytes,
    triton_blocks,
)
from runtime.kernels.tuned_blocks import SCOPED_VMEM_IN_BYTES, SPLASH
from tests.catalogue import expect_error


def memory_in(reason: str) -> tuple[list[float], float]:
    """Return the compiler's memory of a row, and its limit, in MiB."""
    taken = re.search(r"([\d., and]+) of (\d+) MiB", reason)
    assert taken is not None, reason
    return [float(size) for size in re.findall(r"\d+\.\d", taken[1])], float(taken[2])


def test_every_row_fits_its_generation_by_what_the_compiler_said() -> None:
    for (generation, head_dim), row in SPLASH.items():
        (taken,), given = memory_in(row.reason)
        assert taken <= given == SCOPED_VMEM_IN_BYTES[generation] / 2**20
        assert taken * 2**20 < splash_bytes(row.blocks, head_dim, 2) * 1.25  # else the arithmetic is no estimate


def test_every_size_of_model_has_rows_where_its_blocks_fit() -> None:
    for model in MODELS.values():
        for generation in SCOPED_VMEM_IN_BYTES:
            assert (generation, model.head_dim) in SPLASH


@pytest.mark.parametrize("generation", [*SCOPED_VMEM_IN_BYTES, None])
@pytest.mark.parametrize("num_rows", [128, 640, 1536, 4096])
def test_blocks_divide_what_they_are_blocks_of(generation: str | None, num_rows: int) -> None:
    blocks = splash_blocks(generation, head_dim=128, num_rows=num_rows, item_bytes=2).blocks
    assert all(num_rows % size == 0 and size % 128 == 0 for size in blocks)
    assert blocks.key % blocks.key_compute == blocks.key_backward % blocks.key_backward_compute == 0


def test_a_shape_without_a_row_gets_what_the_rule_holds_to_fit_and_says_so() -> None:
    row = splash_blocks("v4", head_dim=192, num_rows=4096, item_bytes=2)
    assert row.blocks.query < SPLASH["v4", 128].blocks.query
    assert "no row for v4, head size 192" in row.reason
    assert splash_bytes(row.blocks, 192, 2) <= SCOPED_VMEM_IN_BYTES["v4"]
    wide = splash_blocks("v4", head_dim=128, num_rows=4096, item_bytes=4)
    assert "4 bytes a number" in wide.reason


def test_blocks_that_were_cut_say_from_what_and_quote_no_figure_of_others() -> None:
    for (generation, head_dim), row in SPLASH.items():
        whole = splash_blocks(generation, head_dim=head_dim, num_rows=4096, item_bytes=2)
        cut = splash_blocks(generation, head_dim=head_dim, num_rows=640, item_bytes=2)
        assert whole == row
        assert cut.blocks != row.blocks
        assert cut.reason.startswith("cut from ") and cut.reason.endswith(" to parts of 640 tokens")
        assert f"query {row.blocks.query}" in cut.reason and "MiB" not in cut.reason
    without_row = splash_blocks("v4", head_dim=192, num_rows=640, item_bytes=2).reason
    assert without_row.startswith("no row for v4, head size 192") and "; cut from query 512" in without_row
    assert triton_blocks("hopper", head_dim=64, num_rows=192).reason == "cut from query 128 to parts of 192 tokens"
    cut = triton_blocks("hopper", head_dim=128, num_rows=192)
    assert cut.reason == "cut from query 128, query_backward 128 to parts of 192 tokens"
    assert cut.blocks == (64, 64, 64, 64, 8)


def test_a_shape_that_nothing_fits_is_refused_with_what_to_use_instead() -> None:
    with expect_error(ValueError):
        splash_blocks("v4", head_dim=8192, num_rows=4096, item_bytes=2)
    with expect_error(ValueError):
        triton_blocks("hopper", head_dim=80, num_rows=4096)
    with expect_error(ValueError):
        triton_blocks("hopper", head_dim=64, num_rows=100)


@pytest.mark.parametrize(("kind", "generation"), [("TPU v5 lite", "v5e"), ("TPU v4", "v4"), ("cpu", None)])
def test_the_generation_is_that_of_the_mesh_whose_program_is_traced(kind: str, generation: str | None) -> None:
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=kind.split()[0].lower())
    mesh = AbstractMesh((1,), ("data",), abstract_device=device)
    seen = []

    def program(values: jax.Array) -> jax.Array:
        seen.append(generation_here())
        return values

    everywhere = PartitionSpec()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((4,), "float32"))
    assert seen[0] == generation
    assert generation_here() is None
