"""Cross-entropy for Hopper GPUs: float32 logits never go through memory. A Mosaic GPU kernel and two plain products.

As `cross_entropy_chunked`, by blocks of tokens with the gradients formed in the forward pass. There a block's float32
logits are written once and read three times; here the kernel that forms them in registers writes, of each tile,
`exp(logit - maximum of its row in the tile)` in bfloat16, and of each of its rows that maximum and the sum of those
exponentials in float32, summed before they are rounded. From these come the log-normaliser, exactly, and the
gradient. An exponential in bfloat16 is as good as the gradient in bfloat16 that is made of it: both keep 8 bits of a
probability. A logit in bfloat16 would keep 8 bits of a number of 20, which is none of the probability.
"""

import itertools
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, BFloat16, Float32

from runtime.kernels.cross_entropy_chunked import block_tokens
from runtime.kernels.linear import weight_gradient
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar

Implementation = Literal["mosaic_gpu", "xla"]

LOG2_E = 1.4426950408889634
STEP = 64  # of the hidden size at a time: 128 bytes of bfloat16, the longest row that is swizzled
CONSUMERS = 2
PRODUCER = CONSUMERS  # the index of the warpgroup that only copies
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # of a thread: 128 * (40 + 2 * 232) is what a processor has
STORED_COLUMNS = 64  # of a tile at a time, on its way to memory
NUM_PROCESSORS = 132  # of an H100 or H200, where nothing tells


class Tile(NamedTuple):
    """How a block of logits is cut among the warpgroups of a processor, and what it keeps on its way there.

    Each of two warpgroups forms `rows` x `columns` logits; they are beside one another where `beside`, which share
    their rows, or one above the other, which share their columns. `num_stages` steps of the hidden size are in shared
    memory. Of `cluster` processors with tiles above one another each reads a part of the head for all.
    """

    rows: int = 64
    columns: int = 256
    beside: bool = False
    num_stages: int = 4
    cluster: int = 1
    ahead: bool = False
    unsafe: bool = False

    @property
    def of_processor(self) -> tuple[int, int]:
        """Rows and columns of both warpgroups."""
        return (self.rows, CONSUMERS * self.columns) if self.beside else (CONSUMERS * self.rows, self.columns)


class Exponentials(NamedTuple):
    """Of a block of logits in tiles of some columns: [T, V] in bfloat16, and [V / columns, T] in float32 twice."""

    of_logits: BFloat16[Array, "tokens vocab_size"]
    maximum: Float32[Array, "tiles tokens"]
    total: Float32[Array, "tiles tokens"]


class Cut(NamedTuple):
    """How the tokens are cut, and each block of them."""

    num_logits: int  # of a block, at most, but never fewer than those of one row of tiles
    tile: Tile


CUT = Cut(1 << 29, Tile())  # 1 GiB of exponentials


def fused(
    hidden: Hidden,
    head: Head,
    labels: Labels,
    weights: PerToken,
    z_loss: Scalar,
    *,
    cut: Cut = CUT,
    implementation: Implementation = "mosaic_gpu",
) -> Losses:
    """Objective, loss and log-normaliser; `cross_entropy.reference` is the definition.

    `implementation="xla"` computes the same without the kernel, and holds a block's float32 logits: for tests.

    Raises:
        ValueError: not bfloat16, or a size of the model that the tile does not divide.
    """
    return _fused(cut, implementation, hidden, head, labels, weights, z_loss)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fused(
    cut: Cut,
    implementation: Implementation,
    hidden: Array,
    head: Array,
    labels: Array,
    weights: Array,
    z_loss: Array,
) -> Losses:
    def block(carry: None, part: tuple[Array, ...]) -> tuple[None, tuple[Array, Array]]:
        return carry, _exponentials_and_loss(cut.tile, implementation, part[0], head, part[1])[1:]

    _, per_token = lax.scan(block, None, _in_blocks(cut, head.shape[1], hidden, labels))
    loss, log_normalizer = (part.reshape(-1)[: hidden.shape[0]] for part in per_token)
    return _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer


def _forward(
    cut: Cut,
    implementation: Implementation,
    hidden: Array,
    head: Array,
    labels: Array,
    weights: Array,
    z_loss: Array,
) -> tuple[Losses, tuple]:
    num_tokens, vocab_size = hidden.shape[0], head.shape[1]

    def block(head_gradient: Array, part: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        rows, row_labels, row_weights = part
        formed, loss, log_normalizer = _exponentials_and_loss(cut.tile, implementation, rows, head, row_labels)
        of_normalizer = row_weights * (1 + 2 * z_loss * log_normalizer)
        scales = jnp.exp(formed.maximum - log_normalizer) * of_normalizer
        in_tiles = formed.of_logits.reshape(rows.shape[0], -1, cut.tile.columns).astype(jnp.float32)
        shares = (in_tiles * scales.T[:, :, None]).reshape(formed.of_logits.shape)
        is_label = row_labels[:, None] == jnp.arange(vocab_size, dtype=row_labels.dtype)[None, :]
        logits_gradient = (shares - jnp.where(is_label, row_weights[:, None], 0.0)).astype(rows.dtype)
        row_gradient = jnp.einsum("tv,hv->th", logits_gradient, head, preferred_element_type=jnp.float32)
        of_block = weight_gradient(rows, logits_gradient, way="plain", preferred_element_type=jnp.float32)
        return head_gradient + of_block, (loss, log_normalizer, row_gradient.astype(rows.dtype))

    blocks = _in_blocks(cut, vocab_size, hidden, labels, weights)
    head_gradient, per_token = lax.scan(block, jnp.zeros(head.shape, jnp.float32), blocks)
    loss, log_normalizer = (part.reshape(-1)[:num_tokens] for part in per_token[:2])
    hidden_gradient = per_token[2].reshape(-1, hidden.shape[1])[:num_tokens]
    result = _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer
    return result, (hidden_gradient, head_gradient.astype(head.dtype))


def _backward(_: Cut, __: Implementation, gradients: tuple, cotangents: tuple[Array, Array, Array]) -> tuple:
    scale = cotangents[0]  # the per-token outputs are without gradient: linear_cross_entropy says so and enforces it
    scaled = ((scale * gradient.astype(jnp.float32)).astype(gradient.dtype) for gradient in gradients)
    return *scaled, None, None, None


_fused.defvjp(_forward, _backward)


def _in_blocks(cut: Cut, vocab_size: int, *arrays: Array) -> tuple[Array, ...]:
    """Each array as [blocks, block, ...], padded with zeros: a padded token has weight 0."""
    num_tokens, whole = arrays[0].shape[0], cut.tile.of_processor[0] * cut.tile.cluster
    size = -(-block_tokens(num_tokens, vocab_size, cut.num_logits) // whole) * whole
    padding = -num_tokens % size
    padded = (jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) for array in arrays)
    return tuple(array.reshape(-1, size, *array.shape[1:]) for array in padded)


def _exponentials_and_loss(
    tile: Tile, implementation: Implementation, rows: Array, head: Array, labels: Array
) -> tuple[Exponentials, Array, Array]:
    form = exponentials if implementation == "mosaic_gpu" else exponentials_in_xla
    formed = form(rows, head, tile)
    peak = formed.maximum.max(axis=0)
    log_normalizer = peak + jnp.log(jnp.sum(formed.total * jnp.exp(formed.maximum - peak), axis=0))
    # An exponential keeps 8 bits of a probability, and the loss of a token is wanted in float32.
    label_columns = jnp.take(head, labels, axis=1).T.astype(jnp.float32)
    label_logit = jnp.sum(rows.astype(jnp.float32) * label_columns, axis=1)
    return formed, log_normalizer - label_logit, log_normalizer


def _objective(loss: Array, log_normalizer: Array, weights: Array, z_loss: Array) -> Array:
    return jnp.sum(weights * (loss + z_loss * jnp.square(log_normalizer)))


def exponentials_in_xla(hidden: Hidden, head: Head, tile: Tile) -> Exponentials:
    """The definition of `exponentials`. Holds all logits."""
    logits = jnp.einsum("th,hv->tv", hidden, head, preferred_element_type=jnp.float32)
    in_tiles = logits.reshape(hidden.shape[0], -1, tile.columns)
    maximum = in_tiles.max(axis=2)
    of_logits = jnp.exp(in_tiles - maximum[:, :, None])
    return Exponentials(of_logits.reshape(logits.shape).astype(jnp.bfloat16), maximum.T, of_logits.sum(axis=2).T)


def exponentials(hidden: Hidden, head: Head, tile: Tile, *, interpret: Any = None) -> Exponentials:
    """`exp(logits - maximum)` with the maximum of each row of a tile, and the sums of them.

    Raises:
        ValueError: not bfloat16, or a size that the tile does not divide.
    """
    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    rows, columns = tile.of_processor
    if hidden.dtype != jnp.bfloat16 or head.dtype != jnp.bfloat16:
        raise ValueError(f"hidden states in {hidden.dtype}, head in {head.dtype}: the kernel takes bfloat16.")
    for name, size, divisor in (
        ("tokens of a block", num_tokens, rows * tile.cluster),
        ("vocab_size", vocab_size, columns),
        ("hidden_size", hidden_size, STEP),
    ):
        if size % divisor:
            raise ValueError(f"{name} is {size}; it must be a multiple of {divisor}.")
    num_tiles = vocab_size // tile.columns
    per_tile = jax.ShapeDtypeStruct((num_tiles, num_tokens), jnp.float32)
    swizzled = plgpu.TilingTransform((8, STEP)), plgpu.SwizzleTransform(128)
    if tile.cluster == 1:
        consumed = plgpu.Barrier(num_arrivals=CONSUMERS, num_barriers=tile.num_stages)
    else:
        consumed = plgpu.ClusterBarrier(
            collective_axes=("cluster",), num_arrivals=CONSUMERS, num_barriers=tile.num_stages
        )
    kernel = plgpu.kernel(
        partial(_exponentials_of_tiles, tile),
        out_type=[jax.ShapeDtypeStruct((num_tokens, vocab_size), jnp.bfloat16), per_tile, per_tile],
        scratch_types={
            "rows": plgpu.SMEM((tile.num_stages, rows, STEP), jnp.bfloat16, transforms=swizzled),
            "columns": plgpu.SMEM((tile.num_stages, STEP, columns), jnp.bfloat16, transforms=swizzled),
            "stored": plgpu.SMEM((CONSUMERS, 2, 64, STORED_COLUMNS), jnp.bfloat16, transforms=swizzled),
            "stored_rows": plgpu.SMEM((CONSUMERS, 2, tile.rows), jnp.float32),
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=tile.num_stages),
            "consumed": consumed,
        },
        grid=(_num_processors() // tile.cluster,),
        grid_names=("processors",),
        cluster=(tile.cluster,),
        cluster_names=("cluster",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name="cross_entropy_exponentials",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            unsafe_no_auto_barriers=tile.unsafe,
            reduction_scratch_bytes=0,  # a row is in four threads of one warp
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
        ),
        interpret=interpret,
    )
    return Exponentials(*kernel(hidden, head))


def _num_processors() -> int:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device and device.num_cores) or NUM_PROCESSORS


def _exponentials_of_tiles(
    tile: Tile,
    hidden: Any,
    head: Any,
    of_logits: Any,
    maximum: Any,
    total: Any,
    *,
    rows: Any,
    columns: Any,
    stored: Any,
    stored_rows: Any,
    loaded: Any,
    consumed: Any,
) -> None:
    """What each warpgroup of each processor does: the last one copies, the others multiply and write."""
    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    num_steps = hidden_size // STEP
    tile_rows, tile_columns = tile.of_processor
    row_tiles, column_tiles = num_tokens // (tile_rows * tile.cluster), vocab_size // tile_columns
    warpgroup = lax.axis_index("warpgroup")

    def over_tiles(body: Any) -> None:
        """Calls it with the first row and column of each tile of this processor, and the steps before.

        Processors at work at a time have all rows of few columns, so that the head is read from memory once.
        """

        @plgpu.nd_loop((column_tiles, row_tiles), collective_axes="processors")
        def _(loop: plgpu.NDLoopInfo) -> None:
            column_tile, row_tile = loop.index
            first_row = (row_tile * tile.cluster + lax.axis_index("cluster")) * tile_rows
            body(first_row, column_tile * tile_columns, loop.local_index * num_steps)

    @pl.when(warpgroup == PRODUCER)
    def copy() -> None:
        plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

        def copy_tile(first_row: Array, first_column: Array, steps_before: Array) -> None:
            @pl.loop(0, num_steps)
            def _(step: Array) -> None:
                stage = lax.rem(steps_before + step, tile.num_stages)
                plgpu.barrier_wait(consumed.at[stage])
                part = pl.ds(step * STEP, STEP)
                plgpu.copy_gmem_to_smem(hidden.at[pl.ds(first_row, tile_rows), part], rows.at[stage], loaded.at[stage])
                plgpu.copy_gmem_to_smem(
                    head.at[part, pl.ds(first_column, tile_columns)],
                    columns.at[stage],
                    loaded.at[stage],
                    collective_axes=() if tile.cluster == 1 else ("cluster",),
                )

        over_tiles(copy_tile)
        # No processor may end while another may still arrive at its barriers.
        for stage in range(tile.num_stages):
            plgpu.barrier_wait(consumed.at[stage])

    @pl.when(warpgroup != PRODUCER)
    def multiply() -> None:
        plgpu.set_max_registers(CONSUMER_REGISTERS, action="increase")
        for stage in range(tile.num_stages):
            plgpu.barrier_arrive(consumed.at[stage])  # all stages are free at first
        its_rows = slice(None) if tile.beside else pl.ds(warpgroup * tile.rows, tile.rows)
        its_columns = pl.ds(warpgroup * tile.columns, tile.columns) if tile.beside else slice(None)

        def multiply_tile(first_row: Array, first_column: Array, steps_before: Array) -> None:
            def product(accumulator: Any) -> Array:
                @pl.loop(0, num_steps)
                def _(step: Array) -> None:
                    stage = lax.rem(steps_before + step, tile.num_stages)
                    plgpu.barrier_wait(loaded.at[stage])
                    plgpu.wgmma(accumulator, rows.at[stage, its_rows], columns.at[stage, :, its_columns])
                    plgpu.wgmma_wait(int(tile.ahead))
                    if not tile.ahead:
                        plgpu.barrier_arrive(consumed.at[stage])
                    else:

                        @pl.when(step > 0)
                        def _() -> None:
                            before = lax.rem(steps_before + step + (tile.num_stages - 1), tile.num_stages)
                            plgpu.barrier_arrive(consumed.at[before])

                finished = accumulator[...]
                if tile.ahead:
                    plgpu.barrier_arrive(consumed.at[lax.rem(steps_before + num_steps - 1, tile.num_stages)])
                return finished

            logits = pl.run_scoped(product, plgpu.ACC((tile.rows, tile.columns), jnp.float32))
            if tile.beside:
                write(logits, first_row, first_column + warpgroup * tile.columns)
            else:
                write(logits, first_row + warpgroup * tile.rows, first_column)

        def write(logits: Array, first_row: Array, first_column: Array) -> None:
            row_maximum = logits.max(axis=1)
            row_total = None
            places = itertools.cycle(stored.at[warpgroup, place] for place in range(2))
            for column in range(0, tile.columns, STORED_COLUMNS):
                part = logits[:, column : column + STORED_COLUMNS]
                part = jnp.exp2((part - lax.broadcast_in_dim(row_maximum, part.shape, [0])) * LOG2_E)
                part_total = part.sum(axis=1)
                row_total = part_total if row_total is None else row_total + part_total
                for row in range(0, tile.rows, 64):
                    place = next(places)
                    plgpu.wait_smem_to_gmem(1, wait_read_only=True)
                    place[...] = part[row : row + 64].astype(jnp.bfloat16)
                    plgpu.commit_smem()
                    plgpu.copy_smem_to_gmem(
                        place, of_logits.at[pl.ds(first_row + row, 64), pl.ds(first_column + column, STORED_COLUMNS)]
                    )
            tile_index = lax.div(first_column, tile.columns)
            stored_rows[warpgroup, 0] = row_maximum
            stored_rows[warpgroup, 1] = row_total
            plgpu.commit_smem()
            for index, per_tile in enumerate((maximum, total)):
                plgpu.copy_smem_to_gmem(
                    stored_rows.at[warpgroup, index], per_tile.at[tile_index, pl.ds(first_row, tile.rows)]
                )

        over_tiles(multiply_tile)
        plgpu.wait_smem_to_gmem(0)
