"""Sampling: the next token of each sequence, drawn with randomness that belongs to its request.

Temperature comes first, then top-k, then top-p, as in `transformers`. The key of a draw is made from seed, request and
place in the text, so that neighbours, batch size and order change nothing.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, UInt32


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Settings for drawing text; the defaults keep every token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens that are kept; 0 keeps all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; use a number above 0, or do_sample: false.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; use a share above 0 and at most 1.")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; use 1 or more, or 0 to keep all tokens.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; use a whole number from 0 to 4294967295.")


class Draws(NamedTuple):
    """Settings of each slot's next draw; a temperature of 0 takes the likeliest token."""

    temperature: Float32[Any, "slots"]
    top_p: Float32[Any, "slots"]
    top_k: Int32[Any, "slots"]
    seed: UInt32[Any, "slots"]
    request: UInt32[Any, "slots"]
    place: Int32[Any, "slots"]
    """Number of tokens of the text so far."""


DRAW_DTYPES = np.float32, np.float32, np.int32, np.uint32, np.uint32, np.int32
Logits = Float32[Array, "slots vocab_size"]


def likeliest(logits: Logits) -> Int32[Array, "slots"]:
    """Return the token with the largest logit of each slot; the first of equal ones, or the first NaN, as argmax does.

    XLA for CPUs vectorizes these two reductions, and not argmax.
    """
    largest = jnp.max(logits, axis=-1, keepdims=True)
    tokens = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where((logits == largest) | jnp.isnan(logits), tokens, logits.shape[-1]), axis=-1)


def drawn(logits: Logits, draws: Draws) -> Int32[Array, "slots"]:
    """Return a token for each slot."""
    is_greedy = draws.temperature == 0
    scaled = logits / jnp.where(is_greedy, 1.0, draws.temperature)[:, None]

    def noise(seed: Array, request: Array, place: Array) -> Array:
        key = jax.random.key(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, request), place)
        return jax.random.gumbel(key, logits.shape[1:], jnp.float32)

    noisy = scaled + jax.vmap(noise)(draws.seed, draws.request, draws.place)
    noisy = jnp.where(kept(scaled, draws.top_p, draws.top_k), noisy, -jnp.inf)
    return likeliest(jnp.where(is_greedy[:, None], logits, noisy))


def kept(logits: Logits, top_p: Float32[Array, "slots"], top_k: Int32[Array, "slots"]) -> Bool[Array, "slots vocab"]:
    """Return which tokens may be drawn: of the `top_k` likeliest, the likeliest whose shares together reach `top_p`."""
    ranked = jnp.sort(logits, axis=-1, descending=True)
    last = jnp.where(top_k == 0, logits.shape[1], jnp.minimum(top_k, logits.shape[1])) - 1
    least = jnp.take_along_axis(ranked, last[:, None], axis=-1)
    shares = jax.nn.softmax(jnp.where(ranked >= least, ranked, -jnp.inf), axis=-1)
    before = jnp.cumsum(shares, axis=-1) - shares
    is_near = (before < top_p[:, None]) | (top_p[:, None] >= 1)
    num_kept = jnp.sum(is_near & (ranked >= least), axis=-1)
    least = jnp.take_along_axis(ranked, jnp.maximum(num_kept, 1)[:, None] - 1, axis=-1)
    return logits >= least
