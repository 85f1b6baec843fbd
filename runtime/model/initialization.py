"""Initial weights: every matrix from one normal distribution, every norm at one (the Llama recipe)."""

import zlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Key


def normal(key: Key[Array, ""], name: str, shape: tuple[int, ...], standard_deviation: float) -> Float32[Array, "..."]:
    """Values that depend on the key, the parameter's name and its shape alone.

    Keyed by name and not by position, so that a new parameter does not change the initial values of the others.
    """
    named_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return standard_deviation * jax.random.normal(named_key, shape, jnp.float32)
