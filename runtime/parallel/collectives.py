"""Gathering a split parameter with a backward pass that scatters its gradient: one mesh axis after the other.

Only for use inside `jax.shard_map`. Both dtypes are chosen on purpose. Left to autodiff, the transpose of a
bfloat16 gather sums gradients in bfloat16 over all devices; and over several axes at once, the TPU compiler makes
a full all-reduce out of a reduce-scatter.
"""

import functools

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

# (dimension, mesh axis) in the order of scattering, major axis first; axes of size 1 are left out.
Splits = tuple[tuple[int, str], ...]


def splits(spec: PartitionSpec, axis_sizes: dict[str, int]) -> Splits:
    """The splits that `spec` describes."""
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
    """The whole parameter in `compute_dtype`.

    Its gradient is summed in `reduce_dtype`: scattered along `split`, and summed over those of `sum_axes` along
    which the parameter is not split but the batch is.
    """
    whole = shard.astype(compute_dtype)
    for dimension, axis in reversed(split):  # the minor axis first, so that shards end up in order
        whole = lax.all_gather(whole, axis, axis=dimension, tiled=True)
    return whole


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
    gradient = cotangent.astype(reduce_dtype)
    for dimension, axis in split:
        gradient = lax.psum_scatter(gradient, axis, scatter_dimension=dimension, tiled=True)
    for axis in sum_axes:
        gradient = lax.psum(gradient, axis)
    return (gradient.astype(np.float32),)  # parameters are float32, and so are their gradients


gather.defvjp(_gather_forward, _gather_backward)
