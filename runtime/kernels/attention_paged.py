"""Attention of one new token a sequence over the keys and values of a cache: by definition, and fused.

Fused is the paged attention that ships with JAX. Its kernels read a slot up to its length and no further, and scores
stay on the chip. Each pair of a slot and a key-value head counts as a sequence with one head, whose pages lie in order
in the cache of all layers, so that no layer is copied out of it.
"""

import math
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from runtime.kernels.block_sizes import LANES

NewQuery = Float[Array, "slots heads head_dim"]
NewKeyValue = Float[Array, "slots kv_heads head_dim"]
CachedKeys = Float[Array, "slots kv_heads head_dim capacity"]
"""Positions come last: the product with the queries then reads them in order, in three quarters of the time on CPU."""
CachedValues = Float[Array, "slots kv_heads capacity head_dim"]
CacheKernel = Literal["reference", "paged_tpu", "paged_gpu"]
PAGE = {"paged_tpu": 512, "paged_gpu": 128}
"""Largest number of tokens that are read at once."""
MOST_SPLITS = 16
"""Largest number of parts of a sequence that a GPU computes at once."""


def cache_kernel_of(platform: str, *, head_dim: int, compute_dtype: str) -> tuple[CacheKernel, str]:
    """Return the kernel for new tokens on a platform, and the reason."""
    if platform == "cpu":
        return "reference", "one product over the cache is fastest on a CPU"
    if compute_dtype != "bfloat16":
        return "reference", f"the fused kernel forms products in bfloat16, not in {compute_dtype}"
    if platform == "tpu":
        if head_dim % LANES:
            return "reference", f"the fused kernel takes heads of whole {LANES} lanes, not of {head_dim}"
        return "paged_tpu", "it reads slots up to their lengths"
    if head_dim & (head_dim - 1):
        return "reference", f"the fused kernel takes heads of a power of two, not of {head_dim}"
    return "paged_gpu", "it reads slots up to their lengths"


def attend_to_cache(
    query: NewQuery,
    key: NewKeyValue,
    value: NewKeyValue,
    cached_keys: CachedKeys,
    cached_values: CachedValues,
    lengths: Int32[Array, "slots"],
) -> NewQuery:
    """Return attention, the softmax in float32. Queries come scaled, as in `attention`.

    Args:
        query: of the new token; heads of a group are neighbours.
        key: of the new token, which attends to itself.
        value: of the new token.
        cached_keys: of earlier tokens.
        cached_values: of earlier tokens.
        lengths: number of earlier tokens of each slot; what lies behind them in the cache is ignored.
    """
    slots, kv_heads, head_dim, capacity = cached_keys.shape
    pairs, groups = slots * kv_heads, query.shape[1] // kv_heads
    rows = query.reshape(pairs, groups, head_dim)
    own_key, own_value = key.reshape(pairs, head_dim), value.reshape(pairs, 1, head_dim)
    keys = cached_keys.reshape(pairs, head_dim, capacity)
    scores = jnp.einsum("pgd,pdc->pgc", rows, keys, preferred_element_type=jnp.float32)
    is_stored = jnp.arange(capacity, dtype=jnp.int32)[None, :] < lengths[:, None]
    scores = jnp.where(jnp.repeat(is_stored, kv_heads, axis=0)[:, None, :], scores, jnp.finfo(jnp.float32).min)
    own_score = jnp.einsum("pgd,pd->pg", rows, own_key, preferred_element_type=jnp.float32)[..., None]
    largest = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), own_score)
    numerators, own_numerator = jnp.exp(scores - largest), jnp.exp(own_score - largest)
    mixed = jnp.einsum(
        "pgc,pcd->pgd",
        numerators.astype(value.dtype),
        cached_values.reshape(pairs, capacity, head_dim),
        preferred_element_type=jnp.float32,
    )
    mixed = mixed + own_numerator * own_value.astype(jnp.float32)
    denominator = jnp.sum(numerators, axis=-1, keepdims=True) + own_numerator
    return (mixed / denominator).astype(query.dtype).reshape(query.shape)


def attend_to_pages(
    query: NewQuery,
    cache: tuple[Any, Any],
    lengths: Int32[Array, "slots"],
    layer: Int32[Array, ""],
    *,
    kernel: CacheKernel,
    interpret: bool = False,
) -> NewQuery:
    """Return attention over the first `lengths` tokens of each slot, the new token among them.

    Args:
        query: of the new token, scaled as in `attention`.
        cache: keys and values of all layers as [layers, slots, kv_heads, capacity, head_dim].
        lengths: tokens of each slot, at least 1.
        layer: number of the layer.
        kernel: its name.
        interpret: whether to run a GPU's kernel without a GPU.
    """
    _, slots, kv_heads, capacity, head_dim = cache[0].shape
    page = math.gcd(capacity, PAGE[kernel])
    pairs, pages = slots * kv_heads, capacity // page
    rows = query.reshape(pairs, -1, head_dim)
    keys, values = (part.reshape(1, -1, page, head_dim) for part in cache)
    first_pages = (layer * pairs + jnp.arange(pairs, dtype=jnp.int32)) * pages
    table = first_pages[:, None] + jnp.arange(pages, dtype=jnp.int32)
    lengths = jnp.repeat(lengths, kv_heads)
    # Imported here: the GPU's import warns, which is noise on a CPU or a TPU.
    if kernel == "paged_tpu":
        from jax.experimental.pallas.ops.tpu import paged_attention as tpu

        mixed = tpu.paged_attention(rows, keys, values, lengths, table, pages_per_compute_block=1)
    else:
        from jax.experimental.pallas.ops.gpu import paged_attention as gpu

        mixed = gpu.paged_attention(
            rows,
            keys,
            values,
            table,
            lengths,
            pages_per_compute_block=1,
            k_splits=math.gcd(pages, MOST_SPLITS),
            interpret=interpret,
        )
    return mixed.reshape(query.shape)
