"""Block sizes: rows fit their chip, other shapes follow the rule, and nothing is answered with what will not fit."""

import re

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, PartitionSpec

from runtime.cost.matrix import MODELS
from runtime.kernels.block_sizes import (
    fused_blocks,
    fused_bytes,
    generation_here,
    splash_blocks,
    splash_bytes,
    triton_blocks,
)
from runtime.kernels.tuned_blocks import FUSED, SCOPED_VMEM_IN_BYTES, SPLASH, VMEM_IN_BYTES, FusedBlocks
from tests.catalogue import expect_error


def memory_told(reason: str) -> tuple[list[float], float]:
    """What the compiler said that a row takes, and of how much, in MiB."""
    taken = re.search(r"([\d., and]+) of (\d+) MiB", reason)
    assert taken is not None, reason
    return [float(size) for size in re.findall(r"\d+\.\d", taken[1])], float(taken[2])


def bundles_told(reason: str) -> tuple[list[int], list[int]]:
    """Of the row's three passes, and of the blocks that it is compared with; of none, its own."""
    row, compared = re.search(r"^(\d+), (\d+) and (\d+)", reason), re.search(r": (\d+), (\d+), (\d+)\)", reason)
    assert row is not None, reason
    own = [int(number) for number in row.groups()]
    return own, own if compared is None else [int(number) for number in compared.groups()]


def test_every_row_fits_its_generation_by_what_the_compiler_said() -> None:
    for (generation, head_dim), row in SPLASH.items():
        (taken,), given = memory_told(row.reason)
        assert taken <= given == SCOPED_VMEM_IN_BYTES[generation] / 2**20
        assert taken * 2**20 < splash_bytes(row.blocks, head_dim, 2) * 1.25  # else the arithmetic is no estimate
    for (generation, hidden_size), fused in FUSED.items():
        sizes, given = memory_told(fused.reason)
        assert len(sizes) == 3
        assert max(sizes) <= given == VMEM_IN_BYTES[generation] / 2**20
        assert fused.blocks.vmem_limit_in_bytes == VMEM_IN_BYTES[generation]
        assert max(sizes) * 2**20 < fused_bytes(fused.blocks, hidden_size, 2) * 1.25


def test_no_row_of_the_loss_takes_more_bundles_than_what_it_was_compared_with() -> None:
    for fused in FUSED.values():
        row, compared = bundles_told(fused.reason)
        assert all(ours <= theirs for ours, theirs in zip(row, compared, strict=True))


def test_every_size_of_model_has_rows_where_its_blocks_fit() -> None:
    for model in MODELS.values():
        for generation in VMEM_IN_BYTES:
            assert (generation, model.head_dim) in SPLASH
            fits = (generation, model.hidden_size) != ("v4", 8192)
            assert ((generation, model.hidden_size) in FUSED) == fits


@pytest.mark.parametrize("generation", [*VMEM_IN_BYTES, None])
@pytest.mark.parametrize("num_rows", [128, 640, 1536, 4096])
def test_blocks_divide_what_they_are_blocks_of(generation: str | None, num_rows: int) -> None:
    blocks = splash_blocks(generation, head_dim=128, num_rows=num_rows, item_bytes=2).blocks
    assert all(num_rows % size == 0 and size % 128 == 0 for size in blocks)
    assert blocks.key % blocks.key_compute == blocks.key_backward % blocks.key_backward_compute == 0
    row = fused_blocks(generation, hidden_size=1024, num_tokens=num_rows, vocab_size=128_256, item_bytes=2)
    for tokens, columns in row.blocks[:3]:
        assert num_rows % tokens == 128_256 % columns == 0
        assert tokens % 128 == columns % 128 == 0


def test_a_shape_without_a_row_gets_what_the_rule_holds_to_fit_and_says_so() -> None:
    row = splash_blocks("v4", head_dim=192, num_rows=4096, item_bytes=2)
    assert row.blocks.query < SPLASH["v4", 128].blocks.query
    assert "no row for v4, head size 192" in row.reason
    assert splash_bytes(row.blocks, 192, 2) <= SCOPED_VMEM_IN_BYTES["v4"]
    wide = splash_blocks("v4", head_dim=128, num_rows=4096, item_bytes=4)
    assert "4 bytes a number" in wide.reason
    fused = fused_blocks("v5p", hidden_size=6144, num_tokens=4096, vocab_size=128_256, item_bytes=2)
    assert "no row for v5p, hidden size 6144" in fused.reason
    assert fused_bytes(fused.blocks, 6144, 2) <= VMEM_IN_BYTES["v5p"]


def test_float32_products_are_counted_with_the_parts_that_they_are_formed_from() -> None:
    # What the compiler said of the gradient of the hidden states in blocks of 512 x 256, on a v5e.
    refused = FusedBlocks((128, 128), (512, 256), (128, 128), VMEM_IN_BYTES["v5e"])
    assert 89.39 <= fused_bytes(refused, 4096, 4) / 2**20 <= 89.39 * 1.25
    taken = fused_blocks("v5e", hidden_size=4096, num_tokens=8192, vocab_size=128_256, item_bytes=4)
    assert taken.blocks[:3] == ((256, 256),) * 3  # compiled
    with expect_error(ValueError):
        fused_blocks("v4", hidden_size=4096, num_tokens=8192, vocab_size=128_256, item_bytes=4)


def test_blocks_that_were_cut_say_from_what_and_quote_no_figure_of_others() -> None:
    for (generation, head_dim), row in SPLASH.items():
        whole = splash_blocks(generation, head_dim=head_dim, num_rows=4096, item_bytes=2)
        cut = splash_blocks(generation, head_dim=head_dim, num_rows=640, item_bytes=2)
        assert whole == row
        assert cut.blocks != row.blocks
        assert cut.reason.startswith("cut from ") and cut.reason.endswith(" to parts of 640 tokens")
        assert f"query {row.blocks.query}" in cut.reason and "MiB" not in cut.reason
    for (generation, hidden_size), fused in FUSED.items():
        part = fused_blocks(generation, hidden_size=hidden_size, num_tokens=4096, vocab_size=32_000, item_bytes=2)
        changed = part.blocks != fused.blocks
        assert part.reason.startswith("cut from ") == ("MiB" not in part.reason) == changed
    assert fused_blocks("v5e", hidden_size=4096, num_tokens=4096, vocab_size=32_000, item_bytes=2).reason == (
        "cut from forward 512 x 768, hidden_gradient 512 x 384 to parts of 4096 tokens and 32000 columns"
    )
    without_row = splash_blocks("v4", head_dim=192, num_rows=640, item_bytes=2).reason
    assert without_row.startswith("no row for v4, head size 192") and "; cut from query 512" in without_row
    assert triton_blocks("hopper", head_dim=64, num_rows=192).reason == "cut from query 128 to parts of 192 tokens"
    cut = triton_blocks("hopper", head_dim=128, num_rows=192)
    assert cut.reason == "cut from query 128, query_backward 128 to parts of 192 tokens"
    assert cut.blocks == (64, 64, 64, 64, 8)


def test_a_shape_that_nothing_fits_is_refused_with_what_to_use_instead() -> None:
    with expect_error(ValueError):
        fused_blocks("v4", hidden_size=16_384, num_tokens=4096, vocab_size=128_256, item_bytes=2)
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
