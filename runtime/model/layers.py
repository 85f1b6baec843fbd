"""Parts that architectures share: initial values and the norm."""

import zlib

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Key


def normal(key: Key[Array, ""], name: str, shape: tuple[int, ...], standard_deviation: float) -> Float32[Array, "..."]:
    """Return initial values of a matrix, which depend on the key, the parameter's name and its shape alone.

    Keyed by name and not by position, so that a new parameter does not change the initial values of the others.
    """
    named_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return standard_deviation * jax.random.normal(named_key, shape, jnp.float32)


def rms_norm(
    values: Float[Array, "*lead size"], weight: Float[Array, "size"], eps: float
) -> Float[Array, "*lead size"]:
    """Return the root-mean-square norm (arXiv:1910.07467), formed in float32; the weight applies in `values`' dtype."""
    wide = values.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return normed.astype(values.dtype) * weight.reshape((1,) * (values.ndim - 1) + weight.shape)
