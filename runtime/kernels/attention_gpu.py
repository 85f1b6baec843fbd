"""GPU attention: the fused Triton kernel that ships with JAX, causal, documents kept apart by segment ids.

It takes as many key-value heads as query heads and whole rows only, so key-value heads are repeated and a stretch is
computed as the end of its row. It was never run on a GPU here: values and gradients are tested in interpret mode, and
that both passes lower to Triton. JAX means to retire its Triton backend; from 0.12 on importing the kernel warns.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from runtime.kernels.block_sizes import triton_blocks


def pallas_gpu(
    query: Float[Array, "batch stretch heads head_dim"],
    key: Float[Array, "batch sequence kv_heads head_dim"],
    value: Float[Array, "batch sequence kv_heads head_dim"],
    segment_ids: Int32[Array, "batch sequence"],
    *,
    first_row: int = 0,
    interpret: bool = False,
) -> Float[Array, "batch stretch heads head_dim"]:
    """Blocks of scores live in registers only; blocks of keys after a block of queries are never touched."""
    # Not with the module: it is no business of a CPU or a TPU that the import warns.
    from jax.experimental.pallas.ops.gpu import attention

    _, num_rows, num_heads, head_dim = query.shape
    end, groups = first_row + num_rows, num_heads // key.shape[2]
    blocks = triton_blocks(head_dim=head_dim, num_rows=end).blocks
    key, value = (jnp.repeat(part[:, :end], groups, axis=2) for part in (key, value))
    mixed = attention.mha(
        jnp.pad(query, ((0, 0), (first_row, 0), (0, 0), (0, 0))),
        key,
        value,
        segment_ids[:, :end],
        sm_scale=head_dim**-0.5,
        causal=True,
        block_sizes=attention.BlockSizes(
            block_q=blocks.query,
            block_k=blocks.key,
            block_q_dkv=blocks.backward,
            block_kv_dkv=blocks.backward,
            block_q_dq=blocks.backward,
            block_kv_dq=blocks.backward,
        ),
        interpret=interpret,
    )
    return mixed[:, first_row:]
