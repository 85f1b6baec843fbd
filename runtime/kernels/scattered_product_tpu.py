"""Pallas TPU kernel that forms a weight's gradient and scatters it over a mesh axis: a ring beside the products.

A device computes `left^T x right` in parts, one for each device of the axis. It adds its neighbour's sum to a part, and
sends the new sum on while it computes the next part: half of the columns go one way round the ring, half the other.
Products are summed in float32, and sums travel in the dtype of the result. The columns of `right` stay in vector memory
while all parts pass them. Only for use inside `jax.shard_map`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from runtime.kernels.block_sizes import device_kind_here
from runtime.kernels.names import SCATTERED
from runtime.kernels.scatter_blocks import NUM_SLOTS, scatter_blocks

# Barrier of the neighbours; a number that no other kernel of a program has. All calls share it, for they meet the same
# neighbours along the same axis (JAX's rule, in the documentation of `get_barrier_semaphore`). One meeting a call is
# enough: no device ends a call before sums of every device have reached it, each sent after its device's meeting, so no
# signal for the next call comes before all have taken those for this one.
COLLECTIVE_ID = 7
FORTH, BACK = 0, 1
"""Ways round the ring."""


def scattered_product(
    left: Float[Array, "tokens scattered"],
    right: Float[Array, "tokens columns"],
    *,
    axis: str,
    sum_dtype: np.dtype,
    interpret: Any = False,
) -> Float[Array, "part columns"]:
    """Return this device's rows of the sum over `axis` of `left^T x right`, in `sum_dtype`.

    Raises:
        ValueError: the kernel does not take the shape (`scatter_blocks`).
    """
    num_devices, ((num_tokens, scattered), columns) = lax.axis_size(axis), (left.shape, right.shape[1])
    blocks = scatter_blocks(
        device_kind_here(),
        num_devices=num_devices,
        num_tokens=num_tokens,
        scattered=scattered,
        columns=columns,
        item_bytes=left.dtype.itemsize,
        sum_bytes=sum_dtype.itemsize,
    )
    part, half = scattered // num_devices, blocks.columns
    num_pairs = columns // (2 * half)
    num_messages = num_pairs * (num_devices - 1)  # each way

    def part_at(step: Array, way: Array, me: Array) -> Array:
        """Return the part of a step: each goes from its owner's neighbour all the way round to its owner."""
        return lax.rem(me + jnp.where(way == FORTH, -1 - step, 1 + step) + 2 * num_devices, num_devices)

    def kernel(  # type: ignore[no-untyped-def]
        me_ref, left_ref, right_ref, result_ref, total, outbox, inbox, is_sent, has_come, is_free
    ):
        pair, step, way = (pl.program_id(index) for index in range(3))
        behind, ahead = lax.rem(me_ref[0] + num_devices - 1, num_devices), lax.rem(me_ref[0] + 1, num_devices)
        receiver, sender = jnp.where(way == FORTH, ahead, behind), jnp.where(way == FORTH, behind, ahead)

        def signal(semaphore, neighbour):  # type: ignore[no-untyped-def]
            pl.semaphore_signal(semaphore, 1, device_id={axis: neighbour})

        @pl.when((pair == 0) & (step == 0) & (way == FORTH))
        def _meet() -> None:
            barrier = pltpu.get_barrier_semaphore()
            signal(barrier, behind)
            signal(barrier, ahead)
            pl.semaphore_wait(barrier, 2)

        own_columns = pl.ds(pl.multiple_of(way * half, half), half)

        def add(index: Array, _: None) -> None:
            tokens = pl.ds(pl.multiple_of(index * blocks.tokens, blocks.tokens), blocks.tokens)
            product = lax.dot_general(
                left_ref[tokens, :],
                right_ref[tokens, own_columns],
                (((0,), (0,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            total[...] = jnp.where(index == 0, product, total[...] + product)

        lax.fori_loop(0, num_tokens // blocks.tokens, add, None)

        def message(number):  # type: ignore[no-untyped-def]
            slot = way, lax.rem(number, NUM_SLOTS)
            return pltpu.make_async_remote_copy(
                outbox.at[slot],
                inbox.at[slot],
                is_sent.at[slot],
                has_come.at[slot],
                device_id={axis: receiver},
            )

        outgoing = pair * (num_devices - 1) + step
        incoming = outgoing - 1  # of the step before, which the neighbour sent meanwhile

        @pl.when(step > 0)
        def _add_received() -> None:
            message(incoming).wait_recv()
            total[...] += inbox[way, lax.rem(incoming, NUM_SLOTS)].astype(jnp.float32)

            @pl.when(incoming + NUM_SLOTS < num_messages)
            def _free_the_slot() -> None:
                signal(is_free.at[way], sender)

        @pl.when(step < num_devices - 1)
        def _send() -> None:
            @pl.when(outgoing >= NUM_SLOTS)
            def _wait_for_a_slot() -> None:
                message(outgoing - NUM_SLOTS).wait_send()
                pl.semaphore_wait(is_free.at[way], 1)

            outbox[way, lax.rem(outgoing, NUM_SLOTS)] = total[...].astype(outbox.dtype)
            message(outgoing).start()

        @pl.when(step == num_devices - 1)
        def _keep() -> None:
            result_ref[:, own_columns] = total[...].astype(result_ref.dtype)

            @pl.when(pair == num_pairs - 1)
            def _see_all_sent() -> None:
                for number in range(max(0, num_messages - NUM_SLOTS), num_messages):
                    message(number).wait_send()

    slots = 2, NUM_SLOTS
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(num_pairs, num_devices, 2),
            in_specs=[
                pl.BlockSpec((num_tokens, part), lambda pair, step, way, me: (0, part_at(step, way, me[0]))),
                pl.BlockSpec((num_tokens, 2 * half), lambda pair, step, way, me: (0, pair)),
            ],
            out_specs=pl.BlockSpec((part, 2 * half), lambda pair, step, way, me: (0, pair)),
            scratch_shapes=[
                pltpu.VMEM((part, half), jnp.float32),
                pltpu.VMEM((*slots, part, half), sum_dtype),
                pltpu.VMEM((*slots, part, half), sum_dtype),
                pltpu.SemaphoreType.DMA(slots),
                pltpu.SemaphoreType.DMA(slots),
                pltpu.SemaphoreType.REGULAR((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((part, columns), sum_dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",) * 3,
            collective_id=COLLECTIVE_ID,
            vmem_limit_bytes=blocks.vmem_limit_in_bytes,
            has_side_effects=True,  # neighbours wait for it: never removed or merged with another
        ),
        interpret=interpret,
        name=f"{SCATTERED}{axis}",
    )(lax.axis_index(axis)[None].astype(jnp.int32), left, right)
