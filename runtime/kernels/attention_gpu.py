"""GPU attention, fused: the Triton kernel that ships with JAX, for GPUs without `tokamax`.

It keeps documents apart by segment ids. It takes as many key-value heads as query heads and whole rows only, so
key-value heads are repeated and a part of a row is computed as the end of its row. JAX means to retire its Triton
backend; from 0.11.1 on importing the kernel warns.
"""

import jax.numpy as jnp

from runtime.kernels.block_sizes import device_kind_here, triton_blocks
from runtime.kernels.shapes import KeyValue, Query, SegmentIds


def pallas_gpu(
    query: Query,
    key: KeyValue,
    value: KeyValue,
    segment_ids: SegmentIds,
    *,
    first_row: int = 0,
    interpret: bool = False,
) -> Query:
    """Return attention with scores in registers only; blocks of keys after a block of queries are never touched."""
    from jax.experimental.pallas.ops.gpu import attention  # its import warns, which is noise on a CPU or a TPU

    _, num_rows, num_heads, head_dim = query.shape
    end, groups = first_row + num_rows, num_heads // key.shape[2]
    blocks = triton_blocks(device_kind_here(), head_dim=head_dim, num_rows=end)
    key, value = (jnp.repeat(part[:, :end], groups, axis=2) for part in (key, value))
    mixed = attention.mha(
        jnp.pad(query, ((0, 0), (first_row, 0), (0, 0), (0, 0))),
        key,
        value,
        segment_ids[:, :end],
        sm_scale=1.0,
        causal=True,
        block_sizes=attention.BlockSizes(
            block_q=blocks.query,
            block_k=blocks.key,
            block_q_dkv=blocks.query_backward,
            block_kv_dkv=blocks.backward,
            block_q_dq=blocks.backward,
            block_kv_dq=blocks.backward,
        ),
        num_warps=blocks.num_warps,
        interpret=interpret,
    )
    return mixed[:, first_row:]
