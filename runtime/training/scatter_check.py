"""Before a phase trains with the scatter kernel: do these very devices add up what they should?

The kernel finds its neighbours itself. A wrong one gives sums that look like sums, or is waited for without end. So
each run first scatters small products whose sums are exact, and holds them against the compiler's reduce-scatter.
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
"""Three pairs of blocks: each way more messages than the kernel has slots for, also between two devices."""
NUM_TOKENS = 2 * TOKENS_AT_ONCE
"""More than are summed over at once."""
IN_A_ROW = 2
"""Products: a layer has seven, and the second meets what the first has left in the semaphores."""
SPARSE = 1 / 128
"""Share of the numbers of one side that are not 0: sums of -1, 0 and 1 over the tokens of dozens of devices stay far
below 256, up to which bfloat16 has every whole number."""


def refuse_wrong_sums(mesh: Mesh, reduce_dtype: jax.typing.DTypeLike, *, interpret: Any = False) -> None:
    """Every device of `mesh`, of all hosts at once, by the axis that gradients are scattered along first.

    Raises:
        RuntimeError: sums are not those of the compiler.
    """
    axis = first_data_axis(mesh)
    sum_dtype = np.dtype(reduce_dtype)
    num_wrong = num_wrong_on(mesh, functools.partial(_num_wrong, axis=axis, sum_dtype=sum_dtype, interpret=interpret))
    if num_wrong:
        raise RuntimeError(
            f"scatter kernel 'pallas_tpu': along {axis} of the mesh {dict(mesh.shape)} {num_wrong:,} sums are not "
            "those of the compiler's reduce-scatter: it would train on wrong gradients. Set scatter_kernel to 'xla', "
            "which changes no identity."
        )


def _num_wrong(key: Key[Array, ""], *, axis: str, sum_dtype: np.dtype, interpret: Any) -> Int32[Array, ""]:
    """Of one device, in all products."""
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
    of_left, of_right, of_zeros = jax.random.split(key, 3)
    left = jax.random.randint(of_left, (NUM_TOKENS, num_devices * LANES), -1, 2).astype(jnp.bfloat16)
    right = jax.random.randint(of_right, (NUM_TOKENS, COLUMNS), -1, 2).astype(jnp.bfloat16)
    return left, jnp.where(jax.random.bernoulli(of_zeros, SPARSE, right.shape), right, 0)
