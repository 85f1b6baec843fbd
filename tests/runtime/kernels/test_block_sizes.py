"""Block sizes: rows fit their chip, other shapes follow the rule, and nothing is answered with what will not fit."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, PartitionSpec

from runtime.kernels.block_sizes import device_kind_here, splash_blocks, splash_bytes
from tests.catalogue import expect_error

# What the compiler took for the larger of both passes in these blocks, in MiB (docs/explanation/tpu.md).
COMPILED = {
    ("TPU v4", 128): (12.8, (1024, 1024, 512, 1024, 1024, 1024)),
    ("TPU v5e", 128): (10.3, (1024, 1024, 512, 1024, 1024, 1024)),
    ("TPU v5p", 64): (10.1, (1024, 1024, 512, 1024, 1024, 1024)),
    ("TPU v5e", 256): (11.4, (1024, 1024, 512, 512, 512, 512)),
    ("TPU v6e", 256): (15.0, (1024, 1024, 512, 1024, 1024, 1024)),
}


def test_the_largest_blocks_of_each_chip_are_those_that_its_compiler_took() -> None:
    for (kind, head_dim), (taken, expected) in COMPILED.items():
        blocks = splash_blocks(kind, head_dim=head_dim, num_rows=4096, item_bytes=2)
        assert blocks == expected
        estimate = max(
            splash_bytes(blocks.query, blocks.key_compute, head_dim, 2, is_backward=False),
            splash_bytes(blocks.query_backward, blocks.key_backward, head_dim, 2, is_backward=True),
        )
        assert taken * 2**20 < estimate * 1.25  # else the arithmetic is no estimate


@pytest.mark.parametrize("kind", ["TPU v4", "TPU v5e", "TPU v5p", "TPU v6e", ""])
@pytest.mark.parametrize("num_rows", [128, 640, 1536, 4096])
def test_blocks_divide_what_they_are_blocks_of(kind: str, num_rows: int) -> None:
    blocks = splash_blocks(kind, head_dim=128, num_rows=num_rows, item_bytes=2)
    assert all(num_rows % size == 0 and size % 128 == 0 for size in blocks)
    assert blocks.key % blocks.key_compute == blocks.key_backward % blocks.key_backward_compute == 0


def test_wider_numbers_and_heads_get_smaller_blocks() -> None:
    usual = splash_blocks("TPU v4", head_dim=128, num_rows=4096, item_bytes=2)
    assert splash_blocks("TPU v4", head_dim=512, num_rows=4096, item_bytes=2).query < usual.query
    assert splash_blocks("TPU v4", head_dim=128, num_rows=4096, item_bytes=4).query_backward < usual.query_backward


def test_a_shape_that_nothing_fits_is_refused_with_what_to_use_instead() -> None:
    with expect_error(ValueError):
        splash_blocks("TPU v4", head_dim=8192, num_rows=4096, item_bytes=2)


@pytest.mark.parametrize("kind", ["TPU v5 lite", "cpu"])
def test_the_kind_of_device_is_that_of_the_mesh_whose_program_is_traced(kind: str) -> None:
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=kind.split()[0].lower())
    mesh = AbstractMesh((1,), ("data",), abstract_device=device)
    seen = []

    def program(values: jax.Array) -> jax.Array:
        seen.append(device_kind_here())
        return values

    everywhere = PartitionSpec()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((4,), "float32"))
    assert seen[0] == kind
    assert device_kind_here() == ""
