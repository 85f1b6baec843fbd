"""Scatter check: compares the sums of the scatter kernel with the compiler's on the devices of a run.

The kernel finds its neighbours itself. A wrong neighbour gives plausible but wrong sums, or a wait without end. Each
run therefore first scatters small products whose sums are exact.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Int32, Key

from runtime.kernels.block_sizes import LANES
from runtime.kernels.scatter_blocks import TOKENS_AT_ONCE
from runtime.kernels.scattered_product_tpu import scattered_product
from runtime.parallel.mesh import first_data_axis
from runtime.training.device_check import num_wrong_on

COLUMNS = 6 * LANES
"""Three pairs of blocks: more messages each way than the kernel has slots, also between two devices."""
NUM_TOKENS = 2 * TOKENS_AT_ONCE
"""More than one pass sums over."""
IN_A_ROW = 2
"""Products in a row; a layer has seven. The second meets the semaphores that the first leaves."""
SPARSE = 1 / 128
"""Share of nonzero numbers on one side: sums of -1, 0 and 1 over the tokens of dozens of devices stay far below 256,
up to which bfloat16 has every integer."""


def check_sums(mesh: Mesh, reduce_dtype: jax.typing.DTypeLike, *, interpret: Any = False) -> None:
    """Check the sums on every device of `mesh`, along the axis that gradients are scattered along first.

    All hosts must call it.

    Raises:
        RuntimeError: sums differ from the compiler's.
    """
    axis = first_data_axis(mesh)
    sum_dtype = np.dtype(reduce_dtype)
    num_wrong = num_wrong_on(mesh, functools.partial(_num_wrong, axis=axis, sum_dtype=sum_dtype, interpret=interpret))
    if num_wrong:
        raise RuntimeError(
            f"scatter kernel 'pallas_tpu': along {axis} of the mesh {dict(mesh.shape)} {num_wrong:,} sums differ "
            "from the compiler's reduce-scatter, so gradients would be wrong. Set scatter_kernel='xla', which changes "
            "no identity."
        )


def _num_wrong(key: Key[Array, ""], *, axis: str, sum_dtype: np.dtype, interpret: Any) -> Int32[Array, ""]:
    num_devices = lax.axis_size(axis)
    sides = [_sides(each, num_devices) for each in jax.random.split(key, IN_A_ROW)]
    every = [scattered_product(*pair, axis=axis, sum_dtype=sum_dtype, interpret=interpret) for pair in sides]
    num_wrong = jnp.int32(0)
    for (left, right), found in zip(sides, every, strict=True):
        product = jnp.einsum("tr,tc->rc", left, right, preferred_element_type=jnp.float32)
        parts = product.reshape(num_devices, LANES, COLUMNS)
        expected = lax.psum_scatter(parts, axis, scatter_dimension=0, tiled=False)
        num_wrong += jnp.sum(found.astype(jnp.float32) != expected, dtype=jnp.int32)
    return num_wrong


def _sides(key: Array, num_devices: int) -> tuple[Array, Array]:
    left_key, right_key, zero_key = jax.random.split(key, 3)
    left = jax.random.randint(left_key, (NUM_TOKENS, num_devices * LANES), -1, 2).astype(jnp.bfloat16)
    right = jax.random.randint(right_key, (NUM_TOKENS, COLUMNS), -1, 2).astype(jnp.bfloat16)
    return left, jnp.where(jax.random.bernoulli(zero_key, SPARSE, right.shape), right, 0)
