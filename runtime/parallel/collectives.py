"""Gather of a split parameter, with a backward pass that scatters its gradient: one mesh axis after the other.

Only for use inside `jax.shard_map`. By autodiff, the transpose of a bfloat16 gather would sum gradients in bfloat16
over all devices; and over several axes at once, the TPU compiler makes a full all-reduce of a reduce-scatter.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from runtime.kernels.block_sizes import device_kind_here, padded_to_tiles
from runtime.parallel.compiler_options import hides_scatters
from runtime.platform.remat import GATHERED

# (dimension, mesh axis) in the order of scattering, major axis first; axes of size 1 are left out.
Splits = tuple[tuple[int, str], ...]


def splits(spec: PartitionSpec, axis_sizes: dict[str, int]) -> Splits:
    """Return the splits of a partition spec."""
    found = []
    for dimension, entry in enumerate(spec):
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        found += [(dimension, axis) for axis in axes if axis_sizes[axis] > 1]
    return tuple(found)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def gather(
    shard: Float[Array, "..."],
    split: Splits,
    sum_axes: tuple[str, ...],
    compute_dtype: np.dtype,
    reduce_dtype: np.dtype,
) -> Float[Array, "..."]:
    """Return the whole parameter in `compute_dtype`.

    Its gradient is summed in `reduce_dtype`: scattered along `split`, and summed over `sum_axes`, which split the batch
    and not the parameter.
    """
    whole = shard.astype(compute_dtype)
    for dimension, axis in reversed(split):  # the minor axis first, so that shards end up in order
        whole = lax.all_gather(whole, axis, axis=dimension, tiled=True)
    return checkpoint_name(whole, GATHERED)


def _gather_forward(
    shard: Array, split: Splits, sum_axes: tuple[str, ...], compute_dtype: np.dtype, reduce_dtype: np.dtype
) -> tuple[Array, None]:
    return gather(shard, split, sum_axes, compute_dtype, reduce_dtype), None


def _gather_backward(
    split: Splits,
    sum_axes: tuple[str, ...],
    compute_dtype: np.dtype,
    reduce_dtype: np.dtype,
    _: None,
    cotangent: Array,
) -> tuple[Array]:
    # v4's compiler cuts no product that is cast before it is summed.
    is_product = cotangent.dtype == reduce_dtype == jnp.bfloat16
    rows_as_they_are = is_product and hides_scatters(device_kind_here())
    gradient = scatter(cotangent.astype(reduce_dtype), split, rows_as_they_are=rows_as_they_are)
    for axis in sum_axes:
        gradient = lax.psum(gradient, axis)
    return (gradient.astype(np.float32),)  # parameters are float32, and so are their gradients


gather.defvjp(_gather_forward, _gather_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def stand_in(shard: Float[Array, "rows columns"], split: Splits, reduce_dtype: np.dtype) -> Float[Array, "part other"]:
    """Return zeros whose gradient is this device's rows, from a kernel that scatters over the first axis of `split`.

    The backward pass scatters them over the other axes. Rows are those of the split dimension.
    """
    (dimension, _), *others = split
    rows = shard.shape[dimension]
    for _, axis in others:
        rows *= lax.axis_size(axis)
    return jnp.zeros((rows, shard.shape[1 - dimension]), reduce_dtype)


def _stand_in_forward(shard: Array, split: Splits, reduce_dtype: np.dtype) -> tuple[Array, None]:
    return stand_in(shard, split, reduce_dtype), None


def _stand_in_backward(split: Splits, reduce_dtype: np.dtype, _: None, part: Array) -> tuple[Array]:
    gradient = scatter(part, tuple((0, axis) for (_dimension, axis) in split[1:]))
    return (jnp.swapaxes(gradient, 0, split[0][0]).astype(np.float32),)


stand_in.defvjp(_stand_in_forward, _stand_in_backward)


def scatter(gradient: Float[Array, "..."], split: Splits, *, rows_as_they_are: bool = False) -> Float[Array, "..."]:
    """Return this device's shard of the sum over the axes of `split`, in a form that stays a reduce-scatter on TPU.

    Rows are scattered as the leading axis of [devices, rows per device, columns], columns padded to whole tiles, and
    columns as they are over the first axis, as rows over the others (docs/explanation/tpu.md).

    Args:
        rows_as_they_are: over the first axis, scatter rows as [rows, columns] too, for a compiler that hides scatters.
    """
    scattered = {dimension for dimension, _ in split}
    widths = [
        (0, 0 if dimension in scattered else padded_to_tiles(size) - size)
        for dimension, size in enumerate(gradient.shape)
    ]
    padded = jnp.pad(gradient, widths) if any(after for _, after in widths) else gradient
    for index, (dimension, axis) in enumerate(split):
        if not index and (dimension or rows_as_they_are):
            padded = lax.psum_scatter(padded, axis, scatter_dimension=dimension, tiled=True)
            continue
        rows = jnp.swapaxes(padded, 0, dimension)
        parts = rows.reshape(lax.axis_size(axis), -1, *rows.shape[1:])
        padded = jnp.swapaxes(lax.psum_scatter(parts, axis, scatter_dimension=0, tiled=False), 0, dimension)
    sizes = enumerate(padded.shape)
    limits = [size if dimension in scattered else gradient.shape[dimension] for dimension, size in sizes]
    return lax.slice(padded, [0] * padded.ndim, limits)
