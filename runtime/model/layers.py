"""Parts that architectures share: initial values and the norm."""

import math
import zlib

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Key

from runtime.model.initialization import Initialization


def first_values(
    key: Key[Array, ""],
    name: str,
    shape: tuple[int, ...],
    initialization: Initialization,
    *,
    fan_in: int,
    residual_layers: int | None = None,
) -> Float32[Array, "..."]:
    """Return initial values of a matrix. Those of a smaller shape are the first of those of a larger one.

    Keyed by name and not by position, so that a new parameter does not change the initial values of the others.
    `shape` may be that of all layers' matrices; `fan_in` is the number of inputs of one. `residual_layers` is the
    number of the model's layers, for a matrix that adds to the residual stream.
    """
    named_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    deviation = initialization.nominal_deviation(fan_in)
    if initialization.depth_scale == "residual" and residual_layers is not None:
        deviation /= math.sqrt(2 * residual_layers)
    if initialization.truncated_at is None:
        return deviation * jax.random.normal(named_key, shape, jnp.float32)
    limit = initialization.truncated_at
    return deviation * jax.random.truncated_normal(named_key, -limit, limit, shape, jnp.float32)


def rms_norm(
    values: Float[Array, "*lead size"], weight: Float[Array, "size"], eps: float
) -> Float[Array, "*lead size"]:
    """Return the root-mean-square norm (arXiv:1910.07467), formed in float32; the weight applies in `values`' dtype."""
    wide = values.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return normed.astype(values.dtype) * weight.reshape((1,) * (values.ndim - 1) + weight.shape)
