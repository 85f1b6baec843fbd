"""GPU attention, fused: the Triton kernel that ships with JAX, and cuDNN's.

On an H200 `pallas_gpu` takes three times as long as `tokamax`.

`pallas_gpu` keeps documents apart by segment ids. It takes as many key-value heads as query heads and whole rows only,
so key-value heads are repeated and a part of a row is computed as the end of its row. JAX means to retire its Triton
backend; from 0.11.1 on importing the kernel warns.

`cudnn` keeps documents apart by a mask of tokens x tokens, because the public function takes lengths of whole rows
only: 2 bytes a pair as cuDNN's bias (32 MiB a sequence of 4,096), read by every head, and as much again for the bias's
unused gradient.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from runtime.kernels.block_sizes import family_here, triton_blocks
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
    blocks = triton_blocks(family_here(), head_dim=head_dim, num_rows=end).blocks
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


def cudnn(
    query: Query,
    key: KeyValue,
    value: KeyValue,
    segment_ids: SegmentIds,
    *,
    first_row: int = 0,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Query:
    """Return cuDNN's flash attention; `implementation="xla"` computes the same without it, for tests."""
    if implementation == "cudnn":
        check_dtype("cudnn", str(query.dtype))
    num_rows = query.shape[1]
    end = first_row + num_rows
    rows, columns = segment_ids[:, first_row:end, None], segment_ids[:, None, :end]
    is_visible = rows == columns
    if first_row:  # cuDNN's own causal mask begins at the first key
        is_visible &= (first_row + jnp.arange(num_rows)[:, None] >= jnp.arange(end)[None, :])[None]
    return jax.nn.dot_product_attention(
        query,
        key[:, :end],
        value[:, :end],
        mask=is_visible[:, None],
        scale=1.0,
        is_causal=first_row == 0,
        implementation=implementation,
    )


def check_dtype(kernel: str, dtype: str) -> None:
    """Raise ValueError for queries that `cudnn` and `tokamax` do not take, or would round."""
    if dtype not in ("bfloat16", "float16"):
        raise ValueError(
            f"attention kernel '{kernel}': the queries are {dtype}, and it takes bfloat16 and float16; compute in "
            "bfloat16, or use attention kernel 'chunked'."
        )
