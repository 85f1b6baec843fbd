"""Splash attention: the TPU kernel that ships with JAX, causal, grouped heads, documents kept apart by segment ids."""

from collections.abc import Callable

import jax
from jax.experimental.pallas.ops.tpu import splash_attention
from jaxtyping import Array, Float, Int32

BLOCK = 512  # tokens of a query and of a key block; compiled for v4, v5e, v5p and v6e at 32 heads x 4096 x 128
LANES = 128  # a key block is a whole number of vector lanes


def splash(
    query: Float[Array, "batch stretch heads head_dim"],
    key: Float[Array, "batch sequence kv_heads head_dim"],
    value: Float[Array, "batch sequence kv_heads head_dim"],
    segment_ids: Int32[Array, "batch sequence"],
    *,
    first_row: int = 0,
    interpret: bool = False,
) -> Float[Array, "batch stretch heads head_dim"]:
    """Blocks of scores live in the chip's vector memory only; blocks above the diagonal are never computed."""
    _, sequence_length, num_heads, head_dim = query.shape
    end = first_row + sequence_length
    key, value, segment_ids = key[:, :end], value[:, :end], segment_ids[:, :end]
    block = min(BLOCK, sequence_length)
    if sequence_length % block or block % LANES:
        raise ValueError(
            f"attention kernel 'splash': sequence length {sequence_length} is not a whole number of blocks of "
            f"{block} tokens, or the block not one of {LANES}; use a multiple of {BLOCK}, or of {LANES} below it."
        )
    kernel = _kernel(num_heads, sequence_length, first_row, block, interpret)

    def one_sequence(query: Array, key: Array, value: Array, segments: Array) -> Array:
        ids = splash_attention.SegmentIds(q=segments[first_row:], kv=segments)
        return kernel(query, key, value, segment_ids=ids)

    query, key, value = (part.swapaxes(1, 2) for part in (query * head_dim**-0.5, key, value))
    return jax.vmap(one_sequence)(query, key, value, segment_ids).swapaxes(1, 2)


def _kernel(num_heads: int, num_rows: int, first_row: int, block: int, interpret: bool) -> Callable[..., Array]:
    shape = num_rows, first_row + num_rows
    mask = splash_attention.MultiHeadMask(
        [splash_attention.CausalMask(shape, offset=first_row) for _ in range(num_heads)]
    )
    sizes = splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
    )
    return splash_attention.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
