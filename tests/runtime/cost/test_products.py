"""FLOPs of products read off a program's text: by hand, and against what XLA counts itself."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from runtime.cost.products import Products
from runtime.cost.program import Program
from runtime.kernels.names import RARELY
from tests.catalogue import expect_error


def flops(product: str, *operands: str) -> int:
    """Return the FLOPs of one instruction; operands are types."""
    given = "\n".join(f"  %p{index} = {type_} parameter({index})" for index, type_ in enumerate(operands))
    names = ", ".join(f"%p{index}" for index in range(len(operands)))
    text = f"ENTRY %main (p: f32[]) -> f32[] {{\n{given}\n  ROOT %{product.replace('()', f'({names})')}\n}}\n"
    return Products(Program.read(text), of_branches=min).flops_within("main")


HEADS = "window={size=1x8 pad=0_0x7_7 rhs_reversal=0x1}, dim_labels=0bf1_1oi0->0b1f"
IN_TWO = "window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=fb0_io0->bf0"


@pytest.mark.parametrize(
    ("given", "operands", "attributes", "multiplied"),
    [
        ("bf16[64,16]", ("bf16[64,32]", "bf16[32,16]"), "dim_labels=bf_io->bf", 64 * 32 * 16),
        ("f32[32,16]", ("bf16[64,32]", "bf16[64,16]"), "dim_labels=fb_io->bf", 64 * 32 * 16),
        ("bf16[2,64,8,16]", ("bf16[2,64,32,1]", "bf16[8,16,32,1]"), HEADS, 2 * 64 * 32 * 8 * 16),
        ("bf16[32,16,2]", ("bf16[64,32,1]", "bf16[64,16,2]"), IN_TWO, 64 * 32 * 16 * 2),
    ],
)
def test_products_as_the_tpu_s_compiler_writes_them(given, operands, attributes, multiplied):
    assert flops(f"product = {given} convolution(), {attributes}", *operands) == 2 * multiplied


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("padding", "spread", "step"), [((0, 0), 1, 1), ((3, 1), 1, 2), ((2, 4), 3, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_counts_what_xla_counts(stride, padding, spread, step, groups):
    def convolved(values: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            values, weights, (stride, 1), (padding, (0, 0)), (spread, 1), (step, 1), feature_group_count=groups
        )

    compiled = jax.jit(convolved).lower(jnp.ones((3, 4, 9, 5)), jnp.ones((6, 4 // groups, 3, 2))).compile()
    program = Program.read(compiled.as_text())
    assert Products(program, of_branches=min).flops_within(program.entry) == compiled.cost_analysis()["flops"] > 0


QUERY, KEY = "bf16[3,8,{},16]", "bf16[3,2,{},16]"
SIDES = "bf16[64,32]", "bf16[32,500]", "s32[64,1]"  # of the loss


@pytest.mark.parametrize(
    ("name", "shapes", "given", "pairs"),
    [
        # Five products; queries that are the last 4 of 12 rows see 8 whole ones and half of their own.
        ("splash_mha_dkv.1", (QUERY.format(4), KEY.format(12)), "bf16[3,8,4,16]", 5 * 3 * 8 * 16 * 4 * (8 + 4 // 2)),
        ("splash_mha_fwd.1", ("s8[1,4,4]", "bf16[8,6,16]", "bf16[2,6,16]"), "bf16[8,6,16]", 2 * 8 * 16 * 6 * (6 // 2)),
        (
            "cross_entropy_ratios.1",
            ("bf16[64,32]", "bf16[32,500]", "s32[64]"),
            "(bf16[64,500], f32[2,64])",
            64 * 32 * 500,
        ),
        ("scattered_product_data_x.3", ("s32[1]", "bf16[64,32]", "bf16[64,48]"), "bf16[8,48]", 64 * 32 * 48),
        ("another.1", ("bf16[64,32]", "bf16[32,500]"), "bf16[64,500]", 0),
    ],
)
def test_kernels_that_are_known_count_by_their_shapes_and_others_for_nothing(name, shapes, given, pairs):
    assert flops(f'{name} = {given} custom-call(), custom_call_target="tpu_custom_call"', *shapes) == 2 * pairs


def test_gpu_kernels_products_are_recognised_by_their_scopes():
    by_mosaic = "mpmd_map.0 = (bf16[64,512], f32[2,64]) custom-call(), metadata={op_name="
    shapes = "bf16[64,32]", "bf16[32,512]", "f32[64]", "s32[64]"
    of_loss = flops(f'{by_mosaic}"jit(f)/cross_entropy_ratios/mpmd_map"}}', *shapes)
    assert of_loss == 2 * 64 * 32 * 512


@pytest.mark.parametrize(("scope", "size", "products"), [("seldom", 64, 1), (RARELY, 32, 0)])
def test_the_longest_branch_counts_and_a_rare_branch_does_not(scope, size, products):
    """Sizes differ, since JAX's cache takes programs that differ by a scope alone as one."""

    def computed(flag: jax.Array, rows: jax.Array, weight: jax.Array) -> jax.Array:
        with jax.named_scope(scope):
            return lax.cond(flag, lambda: rows, lambda: rows @ weight)

    given = jnp.array(True), jnp.ones((size, size)), jnp.ones((size, size))
    program = Program.read(jax.jit(computed).lower(*given).compile().as_text())
    conditionals = [item for part in program.computations.values() for item in part.values()]
    assert any(item.operation == "conditional" for item in conditionals)
    assert Products(program, of_branches=max).flops_within(program.entry) == products * 2 * size**3


@pytest.mark.parametrize(("columns", "backward"), [(8, 8 * 8 // 2), (16, 8 * 16)])
def test_tokamax_kernels_are_recognised_by_what_they_read_and_write(columns, backward):
    call = 'custom-call(), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(f)/tokamax:"}'
    query, key, ends = "bf16[2,8,4,16]", f"bf16[2,{columns},2,16]", "s32[2,1,8]"
    heads = 2 * 2 * 4 * 16  # a product and a sum of each number of a pair's
    forward = flops(f"mpmd_map.0 = ({query}, f32[2,4,8], f32[2,4,8]) {call}", query, key, key, ends)
    assert forward == heads * 2 * (8 * columns - 8 * 8 // 2)
    assert flops(f"mpmd_map.1 = {query} {call}", query, key, key, query, "f32[2,4,8]", ends) == heads * 3 * backward
    both = flops(f"mpmd_map.2 = ({key}, {key}) {call}", query, key, key, query, "f32[2,4,8]", ends)
    assert both == heads * 4 * backward


@pytest.mark.parametrize("operation", ["dot", "convolution"])
def test_a_product_that_is_written_otherwise_is_refused(operation):
    with expect_error(ValueError):
        flops(f"product = f32[4,4] {operation}(), how=unknown", "f32[4,4]", "f32[4,4]")
