"""Cross-entropy for Hopper GPUs without float32 logits in memory: a Mosaic GPU kernel and two plain products.

Like `cross_entropy_chunked`, it works by blocks of tokens and forms the gradients in the forward pass. The kernel forms
logits in registers and writes ratios, `exp(logit - logit of the label)`, in bfloat16, and their sums in float32, taken
before rounding. A loss is `log(1 + sum of the others)`; a row of ratios is the gradient of its logits but for the
label's number and a factor of the row, which goes to the hidden states. Where any token has a loss above
`LARGEST_LOSS`, where ratios near the end of their range, `chunked_wide` computes everything again.

A program of the kernel stays on its processor and takes tile after tile. One of its three warpgroups copies the next
rows and columns to shared memory; the two others multiply, one above the other: they share the columns of the head, and
each writes its own rows. Two programs of a cluster are again one above the other, and each reads half of the columns
for both. Every number is written once, without atomic operations, so bits repeat (docs/explanation/gpu.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, BFloat16, Float32

from runtime.kernels.block_sizes import device_kind_here, is_hopper
from runtime.kernels.cross_entropy_chunked import WIDE, Block, Cut, by_blocks
from runtime.kernels.linear import weight_gradient
from runtime.kernels.names import RATIOS
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
NUM_PROCESSORS = 132  # of an H100 or H200, for devices that do not say
LOG2_E = 1.4426950408889634
LARGEST_LOSS = 60.0  # 2^87: with gradients, a weight and a hidden state within the range of bfloat16, 2^-126 to 2^127
SMALLEST_SCALING = 1e-6


class Ratios(NamedTuple):
    """Ratios of a block of logits: probabilities of other tokens over that of the row's label."""

    to_label: BFloat16[Array, "tokens vocab_size"]
    """Zero at the label."""
    total: Float32[Array, "tiles tokens"]
    """Sums over each tile of `COLUMNS`."""


def fused(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Return objective, loss and log-normaliser; `cross_entropy.reference` is the definition.

    Raises:
        ValueError: the kernel does not take the device or the shape.
    """
    check_shape(
        device_kind_here(),
        num_tokens=hidden.shape[0],
        hidden_size=hidden.shape[1],
        vocab_size=head.shape[1],
        compute_dtype=str(hidden.dtype),
    )
    return by_blocks(CUT, hidden, head, labels, weights, z_loss)


def check_shape(device_kind: str, *, num_tokens: int, hidden_size: int, vocab_size: int, compute_dtype: str) -> None:
    """Raise ValueError where the kernel does not take the device or the shape; an unknown device ("") counts as a
    Hopper.
    """
    why = None
    if not is_hopper(device_kind):
        why = f"its kernel is for H100 and H200, and the device is {device_kind!r}"
    elif compute_dtype != "bfloat16":
        why = f"it takes bfloat16, and the compute dtype is {compute_dtype}"
    elif vocab_size % COLUMNS:
        why = f"vocab_size {vocab_size} is not a multiple of {COLUMNS}"
    elif hidden_size % STEP:
        why = f"hidden_size {hidden_size} is not a multiple of {STEP}"
    elif num_tokens < TOKENS:
        why = f"{num_tokens} tokens on a device are fewer than a block of {TOKENS}"
    if why is not None:
        raise ValueError(f"loss kernel 'mosaic_gpu': {why}; use loss kernel 'chunked_wide'.")


def by_ratios(rows: Hidden, head: Head, labels: Labels, *, form: Callable[..., Ratios] | None = None) -> Block:
    """Return a block's losses and gradients from the ratios of `form`, by default the kernel."""
    columns = jnp.take(head, labels, axis=1).T.astype(jnp.float32)
    label_logits = jnp.sum(rows.astype(jnp.float32) * columns, axis=1)
    ratios = (form or ratios_to_labels)(rows, head, label_logits, labels)
    others = ratios.total.sum(axis=0)
    loss = jnp.log1p(others)
    log_normalizer = loss + label_logits

    def gradients(weights: Array, z_loss: Array) -> tuple[Array, Array]:
        scaling = 1 + 2 * z_loss * log_normalizer
        # Far below zero the z-loss may cancel the loss: the label's number is then large, and not infinite.
        scaling = jnp.where(jnp.abs(scaling) < SMALLEST_SCALING, SMALLEST_SCALING, scaling)
        of_label = 1 - (1 + others) / scaling
        of_logits = ratios.to_label.at[jnp.arange(len(labels)), labels].set(
            of_label.astype(jnp.bfloat16), indices_are_sorted=True, unique_indices=True
        )
        factors = (weights * scaling / (1 + others))[:, None]
        of_rows = jnp.einsum("tv,hv->th", of_logits, head, preferred_element_type=jnp.float32) * factors
        scaled = (rows.astype(jnp.float32) * factors).astype(rows.dtype)
        return of_rows, weight_gradient(scaled, of_logits, way="plain", preferred_element_type=jnp.float32)

    return Block(loss, log_normalizer, gradients)


CUT = Cut(1 << 30, by_ratios, unit=TOKENS, largest_loss=LARGEST_LOSS, otherwise=WIDE)  # 2 GiB of ratios


def ratios_in_xla(hidden: Hidden, head: Head, label_logits: PerToken, labels: Labels) -> Ratios:
    """Return the ratios by their definition. It keeps all logits."""
    logits = jnp.einsum("th,hv->tv", hidden, head, preferred_element_type=jnp.float32)
    is_label = labels[:, None] == jnp.arange(head.shape[1])[None, :]
    ratios = jnp.where(is_label, 0.0, jnp.exp(logits - label_logits[:, None]))
    total = ratios.reshape(len(labels), -1, COLUMNS).sum(axis=2).T
    return Ratios(ratios.astype(jnp.bfloat16), total)


def ratios_to_labels(
    hidden: Hidden, head: Head, label_logits: PerToken, labels: Labels, *, interpret: Any = None
) -> Ratios:
    """Return `exp(logits - label_logits)`, zero at the labels, and its sums in tiles; shapes are of whole tiles.

    `interpret` simulates the kernel, for tests.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu  # what no other platform needs to load

    (num_tokens, _), vocab_size = hidden.shape, head.shape[1]
    swizzled = plgpu.TilingTransform((8, STEP)), plgpu.SwizzleTransform(128)
    kernel = plgpu.kernel(
        _ratios_of_tiles,
        out_type=[
            jax.ShapeDtypeStruct((num_tokens, vocab_size), jnp.bfloat16),
            jax.ShapeDtypeStruct((vocab_size // COLUMNS, num_tokens), jnp.float32),
        ],
        scratch_types={
            "rows": plgpu.SMEM((NUM_STAGES, CONSUMERS * ROWS, STEP), jnp.bfloat16, transforms=swizzled),
            "columns": plgpu.SMEM((NUM_STAGES, STEP, COLUMNS), jnp.bfloat16, transforms=swizzled),
            "stored": plgpu.SMEM((CONSUMERS, 2, ROWS, STORED_COLUMNS), jnp.bfloat16, transforms=swizzled),
            "stored_totals": plgpu.SMEM((CONSUMERS, ROWS), jnp.float32),
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
        kernel_name=RATIOS,
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            reduction_scratch_bytes=0,  # a row is in four threads of one warp
            lowering_semantics=plgpu.LoweringSemantics.Warpgroup,
        ),
        interpret=interpret,
    )
    return Ratios(*kernel(hidden, head, label_logits, labels))


def _num_processors() -> int:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (device and device.num_cores) or NUM_PROCESSORS


def _ratios_of_tiles(
    hidden: Any,
    head: Any,
    label_logits: Any,
    labels: Any,
    to_label: Any,
    total: Any,
    *,
    rows: Any,
    columns: Any,
    stored: Any,
    stored_totals: Any,
    loaded: Any,
    consumed: Any,
) -> None:
    """Run one warpgroup of one program: the last one copies, the others multiply and write."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    num_steps = hidden_size // STEP
    warpgroup = lax.axis_index("warpgroup")

    def over_tiles(body: Callable[[Array, Array, Array], None]) -> None:
        """Call a function with the first row and the column index of each tile of this program, and the steps before.

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

            first_row = first_row + warpgroup * ROWS
            # Fetched before they are needed, so that nothing waits for them.
            label_logit, label = row_of(label_logits, first_row), row_of(labels, first_row) - tile * COLUMNS
            logits = pl.run_scoped(product, plgpu.ACC((ROWS, COLUMNS), jnp.float32))
            write(logits, label_logit, label, first_row, tile)

        def row_of(numbers: Any, first_row: Array) -> Array:
            load: Any = plgpu.load
            its_rows = pl.ds(first_row, ROWS)
            # JAX 0.10 takes the place beside the reference, 0.12 within it.
            place = (numbers, its_rows) if jax.__version_info__ < (0, 11) else (numbers.at[its_rows],)
            return load(*place, optimized=False)  # a row is in four threads

        def write(logits: Array, label_logit: Array, label: Array, first_row: Array, tile: Array) -> None:
            its_rows = pl.ds(first_row, ROWS)
            row_total = None
            for index, column in enumerate(range(0, COLUMNS, STORED_COLUMNS)):
                part = logits[:, column : column + STORED_COLUMNS]
                ratios = jnp.exp2((part - lax.broadcast_in_dim(label_logit, part.shape, [0])) * LOG2_E)
                is_label = lax.broadcasted_iota(jnp.int32, part.shape, 1) == lax.broadcast_in_dim(
                    label - column, part.shape, [0]
                )
                ratios = lax.select(is_label, jnp.zeros_like(ratios), ratios)
                part_total = ratios.sum(axis=1)
                row_total = part_total if row_total is None else row_total + part_total
                place = stored.at[warpgroup, index % 2]
                plgpu.wait_smem_to_gmem(1, wait_read_only=True)
                place[...] = ratios.astype(jnp.bfloat16)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(place, to_label.at[its_rows, pl.ds(tile * COLUMNS + column, STORED_COLUMNS)])
            stored_totals[warpgroup] = row_total
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(stored_totals.at[warpgroup], total.at[tile, its_rows])

        over_tiles(multiply_tile)
        plgpu.wait_smem_to_gmem(0)
