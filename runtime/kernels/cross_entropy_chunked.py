"""Cross-entropy by blocks of tokens, the gradients formed in the forward pass while the logits are there.

Three matrix products in all, as with full logits, and memory for one block of them. (A kernel that recomputes the
logits in the backward pass needs four.) The backward pass only scales by its scalar cotangent.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from runtime.kernels.linear import WeightGradient, weight_gradient
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar


class Cut(NamedTuple):
    """How the tokens are cut, and how each part of the head's gradient is formed."""

    num_logits: int  # of a block, at most, but never fewer than those of 8 tokens
    way: WeightGradient


FOR_CPUS = Cut(1 << 21, "transposed")  # 8 MiB; more blocks pack the head, and add to its gradient, more often
# On an accelerator each block reads the whole head three times and its gradient twice: 7 GB at a vocabulary of 128,256,
# which 2,048 tokens (1 GiB of logits) pay for and 16 do not.
WIDE = Cut(1 << 28, "plain")


def block_tokens(num_tokens: int, vocab_size: int, num_logits: int) -> int:
    """Tokens of a block: as many as have `num_logits`, in equal blocks of a multiple of 8."""
    num_blocks = max(1, -(-num_tokens * vocab_size // num_logits))
    return -(-num_tokens // (8 * num_blocks)) * 8


def chunked(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Objective, loss and log-normaliser; `cross_entropy.reference` is the definition."""
    return _chunked(FOR_CPUS, hidden, head, labels, weights, z_loss)


def chunked_wide(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """The same in blocks for an accelerator's memory."""
    return _chunked(WIDE, hidden, head, labels, weights, z_loss)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(cut: Cut, hidden: Array, head: Array, labels: Array, weights: Array, z_loss: Array) -> Losses:
    blocks, num_tokens = _in_blocks(cut.num_logits, head.shape[1], hidden, labels, weights)

    def block(carry: None, part: tuple[Array, ...]) -> tuple[None, tuple[Array, Array]]:
        return carry, _logits_and_loss(part[0], head, part[1])[1:]

    _, per_token = lax.scan(block, None, blocks)
    loss, log_normalizer = (part.reshape(-1)[:num_tokens] for part in per_token)
    return _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer


def _forward(
    cut: Cut, hidden: Array, head: Array, labels: Array, weights: Array, z_loss: Array
) -> tuple[Losses, tuple]:
    blocks, num_tokens = _in_blocks(cut.num_logits, head.shape[1], hidden, labels, weights)

    def block(head_gradient: Array, part: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        rows, row_labels, row_weights = part
        logits, loss, log_normalizer = _logits_and_loss(rows, head, row_labels)
        of_normalizer = row_weights * (1 + 2 * z_loss * log_normalizer)
        shares = jnp.exp(logits - log_normalizer[:, None]) * of_normalizer[:, None]
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


_chunked.defvjp(_forward, _backward)


def _in_blocks(num_logits: int, vocab_size: int, *arrays: Array) -> tuple[tuple[Array, ...], int]:
    """Each array as [blocks, block, ...], padded with zeros: a padded token has weight 0."""
    num_tokens = arrays[0].shape[0]
    size = block_tokens(num_tokens, vocab_size, num_logits)
    padding = -num_tokens % size
    padded = (jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) for array in arrays)
    return tuple(array.reshape(-1, size, *array.shape[1:]) for array in padded), num_tokens


def _logits_and_loss(rows: Array, head: Array, labels: Array) -> tuple[Array, Array, Array]:
    logits = jnp.einsum("th,hv->tv", rows, head, preferred_element_type=jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    return logits, log_normalizer - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0], log_normalizer


def _objective(loss: Array, log_normalizer: Array, weights: Array, z_loss: Array) -> Array:
    return jnp.sum(weights * (loss + z_loss * jnp.square(log_normalizer)))
