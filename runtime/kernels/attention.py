"""Causal attention between tokens of one document: the definition, and the choice of a kernel by name.

All kernels take [batch, sequence, heads, head_dim] with grouped key-value heads, and hold the softmax in float32.
Queries come scaled by head_dim ** -0.5 (`rotary.rotate`): scaled here, in bfloat16, they would be rounded once more.
Every token sees at least itself, so no row is empty. The queries may be a part of longer rows, from position
`first_row` on; keys, values and segment ids are those of the whole rows. The tokens of a document are contiguous: where
an id comes again after another, kernels may see one document or two.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from runtime.kernels import attention_chunked, attention_tokamax, attention_tpu
from runtime.kernels.shapes import KeyValue, Query, SegmentIds


def reference(query: Query, key: KeyValue, value: KeyValue, segment_ids: SegmentIds, *, first_row: int = 0) -> Query:
    """Return attention by its definition. It keeps all scores, so it suits short sequences."""
    batch, num_rows, num_heads, head_dim = query.shape
    num_keys, num_kv_heads = first_row + num_rows, key.shape[2]
    key, value, segment_ids = key[:, :num_keys], value[:, :num_keys], segment_ids[:, :num_keys]
    groups, pairs = num_heads // num_kv_heads, batch * num_kv_heads
    # One product a (sequence, key-value head), the rows of its whole group below each other. Written as an einsum
    # over five axes, the same takes twice the time on CPU.
    rows = query.reshape(batch, num_rows, num_kv_heads, groups, head_dim)
    rows = rows.transpose(0, 2, 3, 1, 4).reshape(pairs, groups * num_rows, head_dim)
    keys = key.swapaxes(1, 2).reshape(pairs, num_keys, head_dim)
    values = value.swapaxes(1, 2).reshape(pairs, num_keys, head_dim)
    scores = jnp.einsum("prd,pkd->prk", rows, keys, preferred_element_type=jnp.float32)

    is_earlier = first_row + jnp.arange(num_rows)[:, None] >= jnp.arange(num_keys)[None, :]
    is_visible = is_earlier[None] & (segment_ids[:, first_row:, None] == segment_ids[:, None, :])
    scores = scores.reshape(batch, num_heads, num_rows, num_keys)
    scores = jnp.where(is_visible[:, None], scores, jnp.finfo(jnp.float32).min)
    numerators = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    shares = (numerators * (1 / jnp.sum(numerators, axis=-1, keepdims=True))).astype(value.dtype)
    mixed = jnp.einsum("prk,pkd->prd", shares.reshape(pairs, groups * num_rows, num_keys), values)
    mixed = mixed.reshape(batch, num_kv_heads, groups, num_rows, head_dim)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(query.shape)


KERNELS: dict[str, Callable[..., Query]] = {
    "reference": reference,
    "chunked": attention_chunked.chunked,
    "splash": attention_tpu.splash,
    "tokamax": attention_tokamax.tokamax,
}


def attend(
    query: Query, key: KeyValue, value: KeyValue, segment_ids: SegmentIds, *, kernel: str, first_row: int = 0
) -> Query:
    """Run the kernel of that name; a kernel that does not take the shape raises ValueError, and none replaces it."""
    if kernel not in KERNELS:
        raise ValueError(f"attention kernel {kernel!r} is unknown; use one of {', '.join(sorted(KERNELS))}.")
    return KERNELS[kernel](query, key, value, segment_ids, first_row=first_row)
