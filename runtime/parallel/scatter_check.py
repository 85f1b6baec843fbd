"""Before a phase trains with the scatter kernel: do these very devices add up what they should?

The kernel finds its neighbours itself, and a wrong one gives sums that look like sums. So each run first scatters small
products whose sums are exact, and holds them against the compiler's reduce-scatter.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int32

from runtime.kernels.block_sizes import LANES
from runtime.kernels.scattered_product_tpu import scattered_product
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.hosts import whole
from runtime.parallel.mesh import first_data_axis

COLUMNS = 6 * LANES
"""Three pairs of blocks: each way more messages than the kernel has slots for, also between two devices."""


def refuse_wrong_sums(mesh: Mesh, *, interpret: Any = False) -> None:
    """Every device of `mesh`, of all hosts at once, by the axis that gradients are scattered along first.

    Raises:
        RuntimeError: sums are not those of the compiler.
    """
    axis = first_data_axis(mesh)
    program = jax.shard_map(
        functools.partial(_num_wrong, axis=axis, axes=mesh.axis_names, interpret=interpret),
        mesh=mesh,
        in_specs=(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    num_wrong = int(whole(jax.jit(program, compiler_options=compiler_options(mesh))()))
    if num_wrong:
        raise RuntimeError(
            f"scatter kernel 'pallas_tpu': along {axis} of the mesh {dict(mesh.shape)} {num_wrong:,} sums are not "
            "those of the compiler's reduce-scatter: it would train on wrong gradients. Set scatter_kernel to 'xla', "
            "which changes no identity."
        )


def _num_wrong(*, axis: str, axes: tuple[str, ...], interpret: Any) -> Int32[Array, ""]:
    """Of all devices. Small whole numbers, which every sum of is exact in float32, and other ones on each device."""
    num_devices, device = lax.axis_size(axis), lax.axis_index(axes)
    rows = num_devices * LANES

    def numbers(columns: int, odd: int) -> Array:
        place = jnp.arange(LANES, dtype=jnp.int32)[:, None] * 7 + jnp.arange(columns, dtype=jnp.int32) * odd
        return ((place + device * 11) % 5 - 2).astype(jnp.bfloat16)

    left, right = numbers(rows, 3), numbers(COLUMNS, 13)
    found = scattered_product(left, right, axis=axis, sum_dtype=np.dtype(np.float32), interpret=interpret)
    product = jnp.einsum("tr,tc->rc", left, right, preferred_element_type=jnp.float32)
    parts = product.reshape(num_devices, LANES, COLUMNS)
    expected = lax.psum_scatter(parts, axis, scatter_dimension=0, tiled=False)
    return lax.psum(jnp.sum(found != expected, dtype=jnp.int32), axes)
