"""Rotary position embedding (arXiv:2104.09864): frequencies on the host, rotation on the device.

Pairs are (i, i + head_dim / 2), as in Hugging Face's Llama. The frequencies are an argument of the compiled program and
not a constant in it, so a phase that changes the rotary embedding compiles nothing.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from runtime.model.config import Rope

Frequencies = Float32[Array | np.ndarray, "half_head_dim"]


def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Return radians a position for each pair, float32[head_dim / 2], with Llama-3 scaling where `rope` has it."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    plain = 1.0 / rope.rope_theta**exponents
    if rope.scaling is None:
        return plain.astype(np.float32)
    scaling = rope.scaling
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_position_embeddings / wavelength
    # Fewer turns than low_freq_factor: stretched by `factor`; more than high_freq_factor: kept; between: blended.
    kept_share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept_share = np.clip(kept_share, 0.0, 1.0)
    return ((1 - kept_share) * plain / scaling.factor + kept_share * plain).astype(np.float32)


def rotation(
    frequencies: Frequencies, positions: Int32[Array, "*rows sequence"]
) -> tuple[Float32[Array, "*rows sequence half_head_dim"], Float32[Array, "*rows sequence half_head_dim"]]:
    """Return cosine and sine of the angle of each position and pair."""
    pairs = jnp.asarray(frequencies).reshape((1,) * positions.ndim + (-1,))
    angles = positions.astype(jnp.float32)[..., None] * pairs
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    heads: Float[Array, "batch sequence heads head_dim"],
    cosine: Float32[Array, "*own sequence half_head_dim"],
    sine: Float32[Array, "*own sequence half_head_dim"],
    *,
    scale: float = 1.0,
) -> Float[Array, "batch sequence heads head_dim"]:
    """Return each pair turned by its angle, in float32; times `scale`, rounded once to the dtype of `heads`.

    Angles are those of all rows, or of each row.
    """
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cosine, sine = (angle.reshape(-1, heads.shape[1], 1, angle.shape[-1]) for angle in (cosine, sine))
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return (turned * scale).astype(heads.dtype)
