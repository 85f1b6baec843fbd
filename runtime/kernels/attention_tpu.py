"""Splash attention: the TPU kernel that ships with JAX, causal, grouped heads, documents kept apart by segment ids."""

from collections.abc import Callable

import jax
from jax.experimental.pallas.ops.tpu import splash_attention
from jaxtyping import Array

from runtime.kernels.block_sizes import SplashBlocks, device_kind_here, splash_blocks
from runtime.kernels.shapes import KeyValue, Query, SegmentIds


def splash(
    query: Query,
    key: KeyValue,
    value: KeyValue,
    segment_ids: SegmentIds,
    *,
    first_row: int = 0,
    interpret: bool = False,
) -> Query:
    """Return attention with scores in vector memory only; blocks above the diagonal are never computed."""
    _, num_rows, num_heads, head_dim = query.shape
    end = first_row + num_rows
    key, value, segment_ids = key[:, :end], value[:, :end], segment_ids[:, :end]
    blocks = splash_blocks(device_kind_here(), head_dim=head_dim, num_rows=num_rows, item_bytes=query.dtype.itemsize)
    kernel = _kernel(num_heads, num_rows, first_row, blocks, interpret)

    def one_sequence(query: Array, key: Array, value: Array, segments: Array) -> Array:
        ids = splash_attention.SegmentIds(q=segments[first_row:], kv=segments)
        return kernel(query, key, value, segment_ids=ids)

    query, key, value = (part.swapaxes(1, 2) for part in (query, key, value))
    return jax.vmap(one_sequence)(query, key, value, segment_ids).swapaxes(1, 2)


def _kernel(
    num_heads: int, num_rows: int, first_row: int, blocks: SplashBlocks, interpret: bool
) -> Callable[..., Array]:
    shape = num_rows, first_row + num_rows
    mask = splash_attention.MultiHeadMask(
        [splash_attention.CausalMask(shape, offset=first_row) for _ in range(num_heads)]
    )
    sizes = splash_attention.BlockSizes(
        block_q=blocks.query,
        block_kv=blocks.key,
        block_kv_compute=blocks.key_compute,
        block_q_dkv=blocks.query_backward,
        block_kv_dkv=blocks.key_backward,
        block_kv_dkv_compute=blocks.key_backward_compute,
        use_fused_bwd_kernel=True,
    )
    return splash_attention.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
