"""Cross-entropy by blocks of tokens, the gradients formed in the forward pass while the logits are there.

Three matrix products in all, as with full logits, and memory for one block of them. (A kernel that recomputes the
logits in the backward pass needs four.) The backward pass only scales by its scalar cotangent.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from runtime.kernels.linear import WeightGradient, weight_gradient
from runtime.kernels.names import RARELY
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar

FoundT = TypeVar("FoundT")


class Block(NamedTuple):
    """Losses and gradients of a block of tokens."""

    loss: Float32[Array, "tokens"]
    log_normalizer: Float32[Array, "tokens"]
    gradients: Callable[[PerToken, Scalar], tuple[Float32[Array, "tokens hidden_size"], Float32[Array, "..."]]]
    """Gradients of the objective by hidden states and head, from the weights and the z-loss."""


def by_logits(way: WeightGradient, rows: Hidden, head: Head, labels: Labels) -> Block:
    """Form a block with its float32 logits in memory."""
    logits = jnp.einsum("th,hv->tv", rows, head, preferred_element_type=jnp.float32)
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)

    def gradients(weights: Array, z_loss: Array) -> tuple[Array, Array]:
        scales = weights * (1 + 2 * z_loss * log_normalizer)
        shares = jnp.exp(logits - log_normalizer[:, None]) * scales[:, None]
        is_label = labels[:, None] == jnp.arange(head.shape[1], dtype=labels.dtype)[None, :]
        logit_gradient = (shares - jnp.where(is_label, weights[:, None], 0.0)).astype(rows.dtype)
        row_gradient = jnp.einsum("tv,hv->th", logit_gradient, head, preferred_element_type=jnp.float32)
        return row_gradient, weight_gradient(rows, logit_gradient, way=way, preferred_element_type=jnp.float32)

    return Block(
        log_normalizer - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0],
        log_normalizer,
        gradients,
    )


class Cut(NamedTuple):
    """The rule that cuts tokens into blocks, and the function that forms a block."""

    num_logits: int
    """Most logits of a block, before its tokens are rounded up to a multiple of `unit`."""
    form: Callable[[Hidden, Head, Labels], Block]
    unit: int = 8
    """Divisor of a block's tokens."""
    largest_loss: float = math.inf
    """Largest loss up to which `form` is exact."""
    otherwise: "Cut | None" = None
    """Cut that computes everything again where a token's loss is larger."""


# 8 MiB; more blocks pack the head, and add to its gradient, more often.
FOR_CPUS = Cut(1 << 21, partial(by_logits, "transposed"))
# On an accelerator each block reads the whole head three times and its gradient twice: 7 GB at a vocabulary of 128,256,
# which 2,048 tokens (1 GiB of logits) pay for and 16 do not.
WIDE = Cut(1 << 28, partial(by_logits, "plain"))


def block_tokens(num_tokens: int, vocab_size: int, cut: Cut) -> int:
    """Return the tokens of a block: as many as have `num_logits`, in equal blocks of a multiple of `unit`."""
    num_blocks = max(1, -(-num_tokens * vocab_size // cut.num_logits))
    return -(-num_tokens // (cut.unit * num_blocks)) * cut.unit


def chunked(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Return objective, loss and log-normaliser; `cross_entropy.reference` is the definition."""
    return by_blocks(FOR_CPUS, hidden, head, labels, weights, z_loss)


def chunked_wide(hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Return the same as `chunked`, in blocks for an accelerator's memory."""
    return by_blocks(WIDE, hidden, head, labels, weights, z_loss)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def by_blocks(cut: Cut, hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar) -> Losses:
    """Return objective, loss and log-normaliser by the blocks of `cut`."""
    blocks, num_tokens = _in_blocks(cut, head.shape[1], hidden, labels, weights)

    def block(carry: None, part: tuple[Array, ...]) -> tuple[None, tuple[Array, Array]]:
        return carry, cut.form(part[0], head, part[1])[:2]

    _, per_token = lax.scan(block, None, blocks)
    loss, log_normalizer = (part.reshape(-1)[:num_tokens] for part in per_token)
    found = _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer
    return _trusted(cut, loss, found, lambda otherwise: by_blocks(otherwise, hidden, head, labels, weights, z_loss))


def _forward(
    cut: Cut, hidden: Array, head: Array, labels: Array, weights: Array, z_loss: Array
) -> tuple[Losses, tuple]:
    blocks, num_tokens = _in_blocks(cut, head.shape[1], hidden, labels, weights)

    def block(head_gradient: Array, part: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        rows, row_labels, row_weights = part
        loss, log_normalizer, gradients = cut.form(rows, head, row_labels)
        row_gradient, of_block = gradients(row_weights, z_loss)
        return head_gradient + of_block, (loss, log_normalizer, row_gradient.astype(rows.dtype))

    head_gradient, per_token = lax.scan(block, jnp.zeros(head.shape, jnp.float32), blocks)
    loss, log_normalizer = (part.reshape(-1)[:num_tokens] for part in per_token[:2])
    hidden_gradient = per_token[2].reshape(-1, hidden.shape[1])[:num_tokens]
    result = _objective(loss, log_normalizer, weights, z_loss), loss, log_normalizer
    found = result, (hidden_gradient, head_gradient.astype(head.dtype))
    return _trusted(cut, loss, found, lambda otherwise: _forward(otherwise, hidden, head, labels, weights, z_loss))


def _trusted(cut: Cut, loss: Array, found: FoundT, again: Callable[[Cut], FoundT]) -> FoundT:
    """Return `found`, or the result of `cut.otherwise` where a loss is too large for it."""
    otherwise = cut.otherwise
    if otherwise is None:
        return found
    with jax.named_scope(RARELY):
        return lax.cond(jnp.all(loss <= cut.largest_loss), lambda: found, lambda: again(otherwise))


def _backward(_: Cut, gradients: tuple, cotangents: tuple[Array, Array, Array]) -> tuple:
    scale = cotangents[0]  # the per-token outputs have no gradient: linear_cross_entropy stops it
    scaled = ((scale * gradient.astype(jnp.float32)).astype(gradient.dtype) for gradient in gradients)
    return *scaled, None, None, None


by_blocks.defvjp(_forward, _backward)


def _in_blocks(cut: Cut, vocab_size: int, *arrays: Array) -> tuple[tuple[Array, ...], int]:
    """Return each array as [blocks, block, ...], padded with zeros: a padded token has weight 0."""
    num_tokens = arrays[0].shape[0]
    size = block_tokens(num_tokens, vocab_size, cut)
    padding = -num_tokens % size
    padded = (jnp.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)) for array in arrays)
    return tuple(array.reshape(-1, size, *array.shape[1:]) for array in padded), num_tokens


def _objective(loss: Array, log_normalizer: Array, weights: Array, z_loss: Array) -> Array:
    return jnp.sum(weights * (loss + z_loss * jnp.square(log_normalizer)))
