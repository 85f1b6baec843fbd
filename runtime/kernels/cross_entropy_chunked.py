"""Cross-entropy by blocks of tokens, the gradients formed in the forward pass while the logits are there.

Three matrix products in all, as with full logits, and memory for one block of them. (A kernel that recomputes the
logits in the backward pass needs four.) The backward pass only scales by its scalar cotangent.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from runtime.kernels.linear import WeightGradient, weight_gradient
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar


class Block(NamedTuple):
    """What is formed of a block of tokens."""

    loss: Float32[Array, "tokens"]
    log_normalizer: Float32[Array, "tokens"]
    weighted_probabilities: Callable[[Float32[Array, "tokens"]], Float32[Array, "tokens vocab_size"]]
    """The probabilities, each row times its number of the argument."""


def by_logits(rows: Hidden, head: Head, labels: Labels) -> Block:
    """With the block's float32 logits in memory."""
    logits = jnp.einsum("th,hv->tv", rows, head, preferred_element_type=jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)

    def weighted_probabilities(scales: Array) -> Array:
        return jnp.exp(logits - log_normalizer[:, None]) * scales[:, None]

    return Block(
        log_normalizer - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0],
        log_normalizer,
        weighted_probabilities,
    )


class Cut(NamedTuple):
    """How the tokens are cut, what is formed of each block, and how its part of the head's gradient is."""

    num_logits: int
    """Of a block, at most, before its tokens are rounded up to a multiple of `unit`."""
    way: WeightGradient
    unit: int = 8
    """Tokens of a block are a multiple of it."""
    form: Callable[[Hidden, Head, Labels], Block] = by_logits


FOR_CPUS = Cut(1 << 21, "transposed")  # 8 MiB; more blocks pack the head, and add to its gradient, more often
# On an accelerator each block reads the whole head three times and its gradient twice: 7 GB at a vocabulary of 128,256,
# which 2,048 tokens (1 GiB of logits) pay for and 16 do not.
WIDE = Cut(1 << 28, "plain")


def block_tokens(num_tokens: int, vocab_size: int, cut: Cut) -> int:
    """Tokens of a block: as many as have `num_logits`, in equal blocks of a multiple of `unit`."""
    num_blocks = max(1, -(-num_tokens * vocab_size // cut.num_logits))
    return -(-num_tokens // (cut.unit * num_blocks)) * cut.unit


def chunked(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Objective, loss and log-normaliser; `cross_entropy.reference` is the definition."""
    return by_blocks(FOR_CPUS, hidden, head, labels, weights, z_loss)


def chunked_wide(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """The same in blocks for an accelerator's memory."""
    return by_blocks(WIDE, hidden, head, labels, weights, z_loss)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def by_blocks(cut: Cut, hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """The same, cut so."""
    blocks, num_tokens = _in_blocks(cut, head.shape[1], hidden, labels, weights)

    def block(carry: None, part: tuple[Array, ...]) -> tuple[None, tuple[Array, Array]]:
        return carry, cut.form(part[0], head, part[1])[:2]

    _, per_token = lax.scan(block, None, blocks)
    loss, log_normalizer = (part.reshape(-1)[:num_tokens] for part in per_token)
    return _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer


def _forward(
    cut: Cut, hidden: Array, head: Array, labels: Array, weights: Array, z_loss: Array
) -> tuple[Losses, tuple]:
    blocks, num_tokens = _in_blocks(cut, head.shape[1], hidden, labels, weights)

    def block(head_gradient: Array, part: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        rows, row_labels, row_weights = part
        loss, log_normalizer, weighted_probabilities = cut.form(rows, head, row_labels)
        shares = weighted_probabilities(row_weights * (1 + 2 * z_loss * log_normalizer))
        is_label = row_labels[:, None] == jnp.arange(head.shape[1], dtype=row_labels.dtype)[None, :]
        logits_gradient = (shares - jnp.where(is_label, row_weights[:, None], 0.0)).astype(rows.dtype)
        row_gradient = jnp.einsum("tv,hv->th", logits_gradient, head, preferred_element_type=jnp.float32)
        of_block = weight_gradient(rows, logits_gradient, way=cut.way, preferred_element_type=jnp.float32)
        return head_gradient + of_block, (loss, log_normalizer, row_gradient.astype(rows.dtype))

    head_gradient, per_token = lax.scan(block, jnp.zeros(head.shape, jnp.float32), blocks)
    loss, log_normalizer = (part.reshape(-1)[:num_tokens] for part in per_token[:2])
    hidden_gradient = per_token[2].reshape(-1, hidden.shape[1])[:num_tokens]
    result = _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer
    return result, (hidden_gradient, head_gradient.astype(head.dtype))


def _backward(_: Cut, gradients: tuple, cotangents: tuple[Array, Array, Array]) -> tuple:
    scale = cotangents[0]  # the per-token outputs are without gradient: linear_cross_entropy says so and enforces it
    scaled = ((scale * gradient.astype(jnp.float32)).astype(gradient.dtype) for gradient in gradients)
    return *scaled, None, None, None


by_blocks.defvjp(_forward, _backward)


def _in_blocks(cut: Cut, vocab_size: int, *arrays: Array) -> tuple[tuple[Array, ...], int]:
    """Each array as [blocks, block, ...], padded with zeros: a padded token has weight 0."""
    num_tokens = arrays[0].shape[0]
    size = block_tokens(num_tokens, vocab_size, cut)
    padding = -num_tokens % size
    padded = (jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) for array in arrays)
    return tuple(array.reshape(-1, size, *array.shape[1:]) for array in padded), num_tokens


def _objective(loss: Array, log_normalizer: Array, weights: Array, z_loss: Array) -> Array:
    return jnp.sum(weights * (loss + z_loss * jnp.square(log_normalizer)))
