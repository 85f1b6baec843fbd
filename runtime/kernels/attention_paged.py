"""Attention of new tokens over a cache on an accelerator, fused: the paged attention that ships with JAX.

The kernels read a slot up to its length and no further, and scores stay on the chip. Each pair of a slot and a
key-value head counts as a sequence with one head, whose pages lie in order in the cache of all layers, so that no layer
is copied out of it.
"""

import math
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from runtime.kernels.block_sizes import LANES

NewQuery = Float[Array, "slots heads head_dim"]
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
