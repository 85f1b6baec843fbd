"""Cross-entropy as a Pallas TPU kernel: blocks of logits live in vector memory only, in both passes.

Forward: for a block of tokens, a running maximum and sum over the blocks of the vocabulary. Backward: logits again,
once for the gradient of the hidden states (vocabulary innermost) and once for that of the head (tokens innermost),
each summed in float32 in vector memory. Five products instead of three, no logits in the chip's main memory.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from runtime.kernels.block_sizes import fused_blocks, generation_here
from runtime.kernels.names import FUSED
from runtime.kernels.shapes import Head, Hidden, Labels, Losses, PerToken, Scalar
from runtime.kernels.tuned_blocks import FusedBlocks

FORWARD, HIDDEN_GRADIENT, HEAD_GRADIENT = FUSED


def fused(
    hidden: Hidden, head: Head, labels: Labels, weights: PerToken, z_loss: Scalar, *, interpret: bool = False
) -> Losses:
    """Objective, loss and log-normaliser; `cross_entropy.reference` is the definition."""
    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    item_bytes = hidden.dtype.itemsize
    blocks = fused_blocks(
        generation_here(), hidden_size=hidden_size, num_tokens=num_tokens, vocab_size=vocab_size, item_bytes=item_bytes
    ).blocks
    how = _How(blocks, interpret)
    return _fused(how, hidden, head, labels, weights, z_loss)


class _How(NamedTuple):
    blocks: FusedBlocks
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(how: _How, hidden: Array, head: Array, labels: Array, weights: Array, z_loss: Array) -> Losses:
    loss, log_normalizer = _losses(how, hidden, head, labels)
    return jnp.sum(weights * (loss + z_loss * jnp.square(log_normalizer))), loss, log_normalizer


def _forward(
    how: _How, hidden: Array, head: Array, labels: Array, weights: Array, z_loss: Array
) -> tuple[Losses, tuple]:
    result = _fused(how, hidden, head, labels, weights, z_loss)
    return result, (hidden, head, labels, weights, z_loss, result[2])


def _backward(how: _How, saved: tuple, cotangents: tuple[Array, Array, Array]) -> tuple:
    hidden, head, labels, weights, z_loss, log_normalizer = saved
    of_label = cotangents[0] * weights
    of_normalizer = of_label * (1 + 2 * z_loss * log_normalizer)
    columns = labels[:, None], log_normalizer[:, None], of_normalizer[:, None], of_label[:, None]
    hidden_gradient = _gradient(how, hidden, head, columns, of_hidden=True)
    head_gradient = _gradient(how, hidden, head, columns, of_hidden=False)
    return hidden_gradient, head_gradient, None, None, None


_fused.defvjp(_forward, _backward)


def _compiler_params(how: _How) -> pltpu.CompilerParams:
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=how.blocks.vmem_limit_in_bytes
    )


def _logits(hidden_ref: Any, head_ref: Any) -> Array:
    return jnp.dot(hidden_ref[...], head_ref[...], preferred_element_type=jnp.float32)


def _is_label(labels_ref: Any, vocab_index: Array, shape: tuple[int, ...]) -> Array:
    # A comparison and not a gather or jax.nn.one_hot: neither lowers on v4.
    return labels_ref[...] == vocab_index * shape[1] + lax.broadcasted_iota(jnp.int32, shape, 1)


def _losses(how: _How, hidden: Array, head: Array, labels: Array) -> tuple[Array, Array]:
    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    rows, columns = how.blocks.forward

    def kernel(hidden_ref, head_ref, labels_ref, loss_ref, log_normalizer_ref, peak, total, label_logit):  # type: ignore[no-untyped-def]
        vocab_index = pl.program_id(1)

        @pl.when(vocab_index == 0)
        def _start() -> None:
            peak[...] = jnp.full(peak.shape, -jnp.inf, jnp.float32)
            total[...] = jnp.zeros(total.shape, jnp.float32)
            label_logit[...] = jnp.zeros(label_logit.shape, jnp.float32)

        logits = _logits(hidden_ref, head_ref)
        new_peak = jnp.maximum(peak[...], jnp.max(logits, axis=1, keepdims=True))
        total[...] = total[...] * jnp.exp(peak[...] - new_peak) + jnp.sum(
            jnp.exp(logits - new_peak), axis=1, keepdims=True
        )
        peak[...] = new_peak
        mine = jnp.where(_is_label(labels_ref, vocab_index, logits.shape), logits, 0.0)
        label_logit[...] += jnp.sum(mine, axis=1, keepdims=True)

        @pl.when(vocab_index == pl.num_programs(1) - 1)
        def _finish() -> None:
            log_normalizer = peak[...] + jnp.log(total[...])
            log_normalizer_ref[...] = log_normalizer
            loss_ref[...] = log_normalizer - label_logit[...]

    column = pl.BlockSpec((rows, 1), lambda token, vocab: (token, 0))
    loss, log_normalizer = pl.pallas_call(
        kernel,
        grid=(num_tokens // rows, vocab_size // columns),
        in_specs=[
            pl.BlockSpec((rows, hidden_size), lambda token, vocab: (token, 0)),
            pl.BlockSpec((hidden_size, columns), lambda token, vocab: (0, vocab)),
            column,
        ],
        out_specs=[column, column],
        out_shape=[jax.ShapeDtypeStruct((num_tokens, 1), jnp.float32)] * 2,
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * 3,
        compiler_params=_compiler_params(how),
        interpret=how.interpret,
        name=FORWARD,
    )(hidden, head, labels[:, None])
    return loss[:, 0], log_normalizer[:, 0]


def _gradient(how: _How, hidden: Array, head: Array, columns: tuple[Array, ...], *, of_hidden: bool) -> Array:
    """Gradient of the hidden states, or of the head: the innermost grid axis is the one that is summed over."""
    (num_tokens, hidden_size), vocab_size = hidden.shape, head.shape[1]
    rows, width = how.blocks.hidden_gradient if of_hidden else how.blocks.head_gradient

    def kernel(  # type: ignore[no-untyped-def]
        hidden_ref, head_ref, labels_ref, log_normalizer_ref, of_normalizer_ref, of_label_ref, gradient_ref, total
    ):
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            total[...] = jnp.zeros(total.shape, jnp.float32)

        logits = _logits(hidden_ref, head_ref)
        is_label = _is_label(labels_ref, pl.program_id(1 if of_hidden else 0), logits.shape)
        shares = jnp.exp(logits - log_normalizer_ref[...]) * of_normalizer_ref[...]
        logits_gradient = (shares - jnp.where(is_label, of_label_ref[...], 0.0)).astype(hidden_ref.dtype)
        # [tokens, vocab] x [hidden, vocab] -> [tokens, hidden]; or
        # [tokens, hidden] x [tokens, vocab] -> [hidden, vocab].
        left, right = (logits_gradient, head_ref[...]) if of_hidden else (hidden_ref[...], logits_gradient)
        axis = 1 if of_hidden else 0
        total[...] += lax.dot_general(left, right, (((axis,), (axis,)), ((), ())), preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _finish() -> None:
            gradient_ref[...] = total[...].astype(gradient_ref.dtype)

    def index(for_tokens: bool):  # type: ignore[no-untyped-def]
        if of_hidden:
            return (lambda outer, inner: (outer, 0)) if for_tokens else (lambda outer, inner: (0, inner))
        return (lambda outer, inner: (inner, 0)) if for_tokens else (lambda outer, inner: (0, outer))

    num_blocks = num_tokens // rows, vocab_size // width
    hidden_spec = pl.BlockSpec((rows, hidden_size), index(for_tokens=True))
    head_spec = pl.BlockSpec((hidden_size, width), index(for_tokens=False))
    column = pl.BlockSpec((rows, 1), index(for_tokens=True))
    gradient_spec, of = (hidden_spec, hidden) if of_hidden else (head_spec, head)
    total_shape = (rows, hidden_size) if of_hidden else (hidden_size, width)
    return pl.pallas_call(
        kernel,
        grid=num_blocks if of_hidden else num_blocks[::-1],
        in_specs=[hidden_spec, head_spec, *[column] * len(columns)],
        out_specs=gradient_spec,
        out_shape=jax.ShapeDtypeStruct(of.shape, of.dtype),
        scratch_shapes=[pltpu.VMEM(total_shape, jnp.float32)],
        compiler_params=_compiler_params(how),
        interpret=how.interpret,
        name=HIDDEN_GRADIENT if of_hidden else HEAD_GRADIENT,
    )(hidden, head, *columns)
