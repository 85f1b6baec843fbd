"""Kernel checks: small programs with known results, run on the devices of a mesh before our kernels are relied on.

Simulators and compilers prove a kernel elsewhere, each with one version of JAX; only the devices of a run show what it
does there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int32, Key

from runtime.kernels.block_sizes import LANES
from runtime.kernels.cross_entropy_gpu import COLUMNS, STEP, TOKENS, Ratios, ratios_in_xla, ratios_to_labels
from runtime.kernels.scatter_blocks import TOKENS_AT_ONCE
from runtime.kernels.scattered_product_tpu import scattered_product
from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.hosts import whole
from runtime.parallel.mesh import first_data_axis

NUM_TOKENS, HIDDEN_SIZE, VOCAB_SIZE = 8 * TOKENS, 5 * STEP, 20 * COLUMNS
"""More than twice as many tiles as a card has clusters, so that each takes a second one; more steps than stages."""
ROUNDED = 2**-6
"""Twice the largest distance of neighbours in bfloat16."""
SUMMED = 1e-3
SCATTERED_COLUMNS, SCATTERED_TOKENS = 6 * LANES, 2 * TOKENS_AT_ONCE
"""Three pairs of blocks: more messages each way than the kernel has slots. More than one pass sums over the tokens."""
IN_A_ROW = 2
"""Scattered products in a row. The second meets the semaphores that the first leaves."""
SPARSE = 1 / 128
"""Share of nonzero numbers on one side: sums of -1, 0 and 1 over the tokens of dozens of devices stay far below 256,
up to which bfloat16 has every integer."""


def check_loss_kernel(loss_kernel: str, mesh: Mesh) -> None:
    """Compare Hopper's loss kernel with its definition, once a process; all hosts must call it.

    Raises:
        RuntimeError: numbers differ.
    """
    if loss_kernel == "mosaic_gpu":
        check_ratios(mesh)


@functools.cache
def check_ratios(mesh: Mesh, *, form: Callable[..., Ratios] = ratios_to_labels) -> None:
    """Check the loss kernel on every device of `mesh`; it takes 4 s on an H200."""
    num_wrong = _num_wrong_on(mesh, functools.partial(_num_wrong_ratios, form=form))
    if num_wrong:
        raise RuntimeError(
            f"loss kernel 'mosaic_gpu': {num_wrong:,} numbers of a small block differ from its definition on the "
            f"devices of the mesh {dict(mesh.shape)}, so losses and gradients would be wrong. Set "
            "loss_kernel='chunked_wide', which changes no identity."
        )


def check_sums(mesh: Mesh, reduce_dtype: jax.typing.DTypeLike, *, interpret: Any = False) -> None:
    """Compare exact sums of the scatter kernel, which finds its neighbours itself, with the compiler's.

    All hosts must call it. A wrong neighbour gives wrong sums, or a wait without end.

    Raises:
        RuntimeError: sums differ.
    """
    axis = first_data_axis(mesh)
    product = functools.partial(scattered_product, axis=axis, sum_dtype=np.dtype(reduce_dtype), interpret=interpret)
    num_wrong = _num_wrong_on(mesh, functools.partial(_num_wrong_sums, axis=axis, product=product))
    if num_wrong:
        raise RuntimeError(
            f"scatter kernel 'pallas_tpu': along {axis} of the mesh {dict(mesh.shape)} {num_wrong:,} sums differ "
            "from the compiler's reduce-scatter, so gradients would be wrong. Set scatter_kernel='xla', which changes "
            "no identity."
        )


def _num_wrong_on(mesh: Mesh, num_wrong: Callable[[Key[Array, ""]], Int32[Array, ""]]) -> int:
    """Return the sum of `num_wrong(key)` over all devices on all hosts, each with its own key."""

    def sum_of_all() -> Int32[Array, ""]:
        own_key = jax.random.fold_in(jax.random.key(0), lax.axis_index(mesh.axis_names))
        return lax.psum(num_wrong(own_key), mesh.axis_names)

    program = jax.shard_map(sum_of_all, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False)
    return int(whole(jax.jit(program, compiler_options=compiler_options(mesh))()))


def _num_wrong_ratios(key: Key[Array, ""], *, form: Callable[..., Ratios]) -> Int32[Array, ""]:
    hidden_key, head_key, label_key = jax.random.split(key, 3)
    hidden = jax.random.normal(hidden_key, (NUM_TOKENS, HIDDEN_SIZE), jnp.bfloat16)
    # Logits with a standard deviation of 3, as in a trained model.
    head = (3 * HIDDEN_SIZE**-0.5 * jax.random.normal(head_key, (HIDDEN_SIZE, VOCAB_SIZE))).astype(jnp.bfloat16)
    labels = jax.random.randint(label_key, (NUM_TOKENS,), 0, VOCAB_SIZE, jnp.int32)
    columns = jnp.take(head, labels, axis=1).T.astype(jnp.float32)
    given = hidden, head, jnp.sum(hidden.astype(jnp.float32) * columns, axis=1), labels
    num_wrong = jnp.int32(0)
    for found, expected, tolerance in zip(form(*given), ratios_in_xla(*given), (ROUNDED, SUMMED), strict=True):
        found, expected = found.astype(jnp.float32), expected.astype(jnp.float32)
        # Written so that NaN counts as wrong. Zeros, at the labels, must match exactly.
        num_wrong += jnp.sum(~(jnp.abs(found - expected) <= tolerance * expected), dtype=jnp.int32)
    return num_wrong


def _num_wrong_sums(key: Key[Array, ""], *, axis: str, product: Callable[[Array, Array], Array]) -> Int32[Array, ""]:
    num_devices = lax.axis_size(axis)
    sides = [_sides(each, num_devices) for each in jax.random.split(key, IN_A_ROW)]
    num_wrong = jnp.int32(0)
    for (left, right), found in zip(sides, [product(*pair) for pair in sides], strict=True):
        whole_product = jnp.einsum("tr,tc->rc", left, right, preferred_element_type=jnp.float32)
        parts = whole_product.reshape(num_devices, LANES, SCATTERED_COLUMNS)
        expected = lax.psum_scatter(parts, axis, scatter_dimension=0, tiled=False)
        num_wrong += jnp.sum(found.astype(jnp.float32) != expected, dtype=jnp.int32)
    return num_wrong


def _sides(key: Array, num_devices: int) -> tuple[Array, Array]:
    left_key, right_key, zero_key = jax.random.split(key, 3)
    left = jax.random.randint(left_key, (SCATTERED_TOKENS, num_devices * LANES), -1, 2).astype(jnp.bfloat16)
    right = jax.random.randint(right_key, (SCATTERED_TOKENS, SCATTERED_COLUMNS), -1, 2).astype(jnp.bfloat16)
    return left, jnp.where(jax.random.bernoulli(zero_key, SPARSE, right.shape), right, 0)
