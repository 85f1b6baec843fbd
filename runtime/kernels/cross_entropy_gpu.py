"""Cross-entropy for Hopper GPUs: float32 logits never go through memory. A Mosaic GPU kernel and two plain products.

As `cross_entropy_chunked`, by blocks of tokens with the gradients formed in the forward pass. There a block's float32
logits are written once and read three times; here the kernel that forms them in registers writes, of each tile,
`exp(logit - maximum of its row in the tile)` in bfloat16, and of each of its rows that maximum and the sum of those
exponentials in float32, summed before they are rounded. From these come the log-normaliser, exactly, and the
gradient. An exponential in bfloat16 is as good as the gradient in bfloat16 that is made of it: both keep 8 bits of a
probability. Of a label that is likelier than all else together it is one, exactly: nothing of the small difference
between its probability and one is lost. A logit in bfloat16 would keep 8 bits of a number of 20, which is none of the
probability.

A program of the kernel stays on its processor and takes tile after tile. One of its three warpgroups copies the next
rows and columns to shared memory, while the two others multiply what is there, one above the other: they share the
columns of the head, and each writes its own rows. Two programs of a cluster are again one above the other, and each
reads half of the columns for both. Every number is written once, and there is no atomic operation: bits repeat.

Timed on an H200 (docs/gpu.md). Tested are the definition in XLA against float64, the kernel on simulated processors
against the definition, and that it becomes machine code of an H200 that keeps everything in registers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, BFloat16, Float32

from runtime.kernels.block_sizes import device_kind_here, family_of
from runtime.kernels.cross_entropy_chunked import Block, Cut, by_blocks
from runtime.kernels.names import EXPONENTIALS
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar

CONSUMERS = 2  # warpgroups that multiply
ROWS, COLUMNS = 64, 256  # of the logits that one of them forms at a time: 128 registers of each thread
CLUSTER = 2  # programs that share what they read of the head
TOKENS = ROWS * CONSUMERS * CLUSTER  # of a cluster at a time
STEP = 64  # of the hidden size at a time: 128 bytes of bfloat16, the longest row that is swizzled
NUM_STAGES = 4  # steps that are in shared memory at a time
STORED_COLUMNS = 64  # of a tile at a time, on its way to memory
PRODUCER = CONSUMERS  # the index of the warpgroup that only copies
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # of a thread: 128 * (40 + 2 * 232) is what a processor has
NUM_PROCESSORS = 132  # of an H100 or H200, where nothing tells
LOG2_E = 1.4426950408889634


class Exponentials(NamedTuple):
    """Of a block of logits in tiles of `COLUMNS`."""

    of_logits: BFloat16[Array, "tokens vocab_size"]
    maximum: Float32[Array, "tiles tokens"]
    total: Float32[Array, "tiles tokens"]


def fused(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Objective, loss and log-normaliser; `cross_entropy.reference` is the definition.

    Raises:
        ValueError: what `refuse_shape` says.
    """
    refuse_shape(
        device_kind_here(),
        num_tokens=hidden.shape[0],
        hidden_size=hidden.shape[1],
        vocab_size=head.shape[1],
        compute_dtype=str(hidden.dtype),
    )
    return by_blocks(CUT, hidden, head, labels, weights, z_loss)


def refuse_shape(device_kind: str, *, num_tokens: int, hidden_size: int, vocab_size: int, compute_dtype: str) -> None:
    """Raises ValueError, with the reason, where the kernel cannot run on the device or not at the shape.

    Of no device ("") it is taken to be a Hopper.
    """
    why = None
    if device_kind and family_of(device_kind) != "hopper":
        why = f"its kernel is for H100 and H200, and the device is {device_kind!r}"
    elif compute_dtype != "bfloat16":
        why = f"it takes bfloat16, and computed is in {compute_dtype}"
    elif vocab_size % COLUMNS:
        why = f"vocab_size {vocab_size} is not a multiple of {COLUMNS}"
    elif hidden_size % STEP:
        why = f"hidden_size {hidden_size} is not a multiple of {STEP}"
    elif num_tokens < TOKENS:
        why = f"{num_tokens} tokens on a device are fewer than a block of {TOKENS}"
    if why is not None:
        raise ValueError(f"loss kernel 'mosaic_gpu': {why}; use loss kernel 'chunked_wide'.")


def by_exponentials(
    rows: Hidden, head: Head, labels: Labels, *, form: Callable[[Hidden, Head], Exponentials] | None = None
) -> Block:
    """A block's losses and probabilities, from its exponentials as `form` gives them: by default the kernel."""
    formed = (form or exponentials)(rows, head)
    peak = formed.maximum.max(axis=0)
    log_normalizer = peak + jnp.log(jnp.sum(formed.total * jnp.exp(formed.maximum - peak[None, :]), axis=0))
    # An exponential keeps 8 bits of a probability, and the loss of a token is wanted in float32.
    label_columns = jnp.take(head, labels, axis=1).T.astype(jnp.float32)
    label_logit = jnp.sum(rows.astype(jnp.float32) * label_columns, axis=1)

    def weighted_probabilities(scales: Array) -> Array:
        of_tiles = jnp.exp(formed.maximum - log_normalizer[None, :]) * scales[None, :]
        in_tiles = formed.of_logits.reshape(rows.shape[0], -1, COLUMNS).astype(jnp.float32)
        return (in_tiles * of_tiles.T[:, :, None]).reshape(formed.of_logits.shape)

    return Block(log_normalizer - label_logit, log_normalizer, weighted_probabilities)


CUT = Cut(1 << 29, "plain", unit=TOKENS, form=by_exponentials)  # 1 GiB of exponentials, and as much of their gradient


def exponentials_in_xla(hidden: Hidden, head: Head) -> Exponentials:
    """The definition of `exponentials`. Holds all logits."""
    logits = jnp.einsum("th,hv->tv", hidden, head, preferred_element_type=jnp.float32)
    in_tiles = logits.reshape(hidden.shape[0], -1, COLUMNS)
    maximum = in_tiles.max(axis=2)
    of_logits = jnp.exp(in_tiles - maximum[:, :, None])
    return Exponentials(of_logits.reshape(logits.shape).astype(jnp.bfloat16), maximum.T, of_logits.sum(axis=2).T)


def exponentials(hidden: Hidden, head: Head, *, interpret: Any = None) -> Exponentials:
    """`exp(logits - maximum)` with the maximum of each row of a tile, and the sums of them; of whole tiles only.

    `interpret` says how the kernel is simulated, for tests.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu  # what no other platform needs to load

    (num_tokens, _), vocab_size = hidden.shape, head.shape[1]
    per_tile = jax.ShapeDtypeStruct((vocab_size // COLUMNS, num_tokens), jnp.float32)
    swizzled = plgpu.TilingTransform((8, STEP)), plgpu.SwizzleTransform(128)
    kernel = plgpu.kernel(
        _exponentials_of_tiles,
        out_type=[jax.ShapeDtypeStruct((num_tokens, vocab_size), jnp.bfloat16), per_tile, per_tile],
        scratch_types={
            "rows": plgpu.SMEM((NUM_STAGES, CONSUMERS * ROWS, STEP), jnp.bfloat16, transforms=swizzled),
            "columns": plgpu.SMEM((NUM_STAGES, STEP, COLUMNS), jnp.bfloat16, transforms=swizzled),
            "stored": plgpu.SMEM((CONSUMERS, 2, ROWS, STORED_COLUMNS), jnp.bfloat16, transforms=swizzled),
            "stored_rows": plgpu.SMEM((CONSUMERS, 2, ROWS), jnp.float32),
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=NUM_STAGES),
            "consumed": plgpu.ClusterBarrier(
                collective_axes=("cluster",), num_arrivals=CONSUMERS, num_barriers=NUM_STAGES
            ),
        },
        grid=(_num_processors() // CLUSTER,),
        grid_names=("clusters",),
        cluster=(CLUSTER,),
        cluster_names=("cluster",),
        num_threads=CONSUMERS + 1,
        thread_name="warpgroup",
        kernel_name=EXPONENTIALS,
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
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
    """What each warpgroup of each program does: the last one copies, the others multiply and write."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    num_steps = hidden_size // STEP
    warpgroup = lax.axis_index("warpgroup")

    def over_tiles(body: Callable[[Array, Array, Array], None]) -> None:
        """Calls it with the first row and the index among columns of each tile of this program, and the steps before.

        Programs at work at a time have all rows of few columns, so that the head is read from memory once.
        """

        @plgpu.nd_loop((vocab_size // COLUMNS, num_tokens // TOKENS), collective_axes="clusters")
        def _(loop: plgpu.NDLoopInfo) -> None:
            tile, of_tokens = loop.index
            first_row = (of_tokens * CLUSTER + lax.axis_index("cluster")) * (CONSUMERS * ROWS)
            body(first_row, tile, loop.local_index * num_steps)

    @pl.when(warpgroup == PRODUCER)
    def copy() -> None:
        plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

        def copy_tile(first_row: Array, tile: Array, steps_before: Array) -> None:
            its_rows, its_columns = pl.ds(first_row, CONSUMERS * ROWS), pl.ds(tile * COLUMNS, COLUMNS)

            @pl.loop(0, num_steps)
            def _(step: Array) -> None:
                stage = lax.rem(steps_before + step, NUM_STAGES)
                part = pl.ds(step * STEP, STEP)
                plgpu.barrier_wait(consumed.at[stage])
                plgpu.copy_gmem_to_smem(hidden.at[its_rows, part], rows.at[stage], loaded.at[stage])
                plgpu.copy_gmem_to_smem(
                    head.at[part, its_columns], columns.at[stage], loaded.at[stage], collective_axes=("cluster",)
                )

        over_tiles(copy_tile)
        # No program may end while the other of its cluster may still arrive at its barriers.
        for stage in range(NUM_STAGES):
            plgpu.barrier_wait(consumed.at[stage])

    @pl.when(warpgroup != PRODUCER)
    def multiply() -> None:
        plgpu.set_max_registers(CONSUMER_REGISTERS, action="increase")
        for stage in range(NUM_STAGES):
            plgpu.barrier_arrive(consumed.at[stage])  # all stages are free at first

        def multiply_tile(first_row: Array, tile: Array, steps_before: Array) -> None:
            def product(accumulator: Any) -> Array:
                @pl.loop(0, num_steps)
                def _(step: Array) -> None:
                    stage = lax.rem(steps_before + step, NUM_STAGES)
                    plgpu.barrier_wait(loaded.at[stage])
                    plgpu.wgmma(accumulator, rows.at[stage, pl.ds(warpgroup * ROWS, ROWS)], columns.at[stage])
                    plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(consumed.at[stage])

                return accumulator[...]

            write(pl.run_scoped(product, plgpu.ACC((ROWS, COLUMNS), jnp.float32)), first_row + warpgroup * ROWS, tile)

        def write(logits: Array, first_row: Array, tile: Array) -> None:
            its_rows = pl.ds(first_row, ROWS)
            row_maximum = logits.max(axis=1)
            row_total = None
            for index, column in enumerate(range(0, COLUMNS, STORED_COLUMNS)):
                part = logits[:, column : column + STORED_COLUMNS]
                part = jnp.exp2((part - lax.broadcast_in_dim(row_maximum, part.shape, [0])) * LOG2_E)
                part_total = part.sum(axis=1)
                row_total = part_total if row_total is None else row_total + part_total
                place = stored.at[warpgroup, index % 2]
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)
                place[...] = part.astype(jnp.bfloat16)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(place, of_logits.at[its_rows, pl.ds(tile * COLUMNS + column, STORED_COLUMNS)])
            stored_rows[warpgroup, 0] = row_maximum
            stored_rows[warpgroup, 1] = row_total
            plgpu.commit_smem()
            for index, per_tile in enumerate((maximum, total)):
                plgpu.copy_smem_to_gmem(stored_rows.at[warpgroup, index], per_tile.at[tile, its_rows])

        over_tiles(multiply_tile)
        plgpu.wait_smem_to_gmem(0)
