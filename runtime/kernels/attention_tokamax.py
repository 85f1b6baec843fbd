"""GPU attention of tokamax: Google's kernels for Hopper, optional, the quickest on an H200 (docs/explanation/gpu.md).

The mask is the first position of each query's document and causality: one number a query, not tokens x tokens. Forward,
the kernel skips blocks of keys before the documents of a block of queries; backward it masks them. Both passes skip
blocks after the diagonal of a whole row; for a part of a row, the backward pass computes all rows and columns. The
public function takes no such mask, so this module calls tokamax's private op, at exactly one version for each JAX.

Sums have one order: there are no atomic operations. Block sizes are given here, since tokamax's tuning could differ
between processes. Its own choice of kernel falls back to XLA's attention silently, so it is never used.
"""

import importlib.metadata
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from runtime.kernels.attention_chunked import document_begins
from runtime.kernels.block_sizes import MosaicBlocks, device_kind_here, mosaic_blocks
from runtime.kernels.shapes import KeyValue, Query, SegmentIds

OF_JAX_0_10, OF_LATER_JAX = "0.0.12", "0.0.17"
"""Versions whose source was read; pyproject.toml has them as the extra `tokamax`. The first fails with JAX 0.12 while
it is traced; the second needs JAX 0.11.1 and Python 3.12."""


def tokamax(
    query: Query,
    key: KeyValue,
    value: KeyValue,
    segment_ids: SegmentIds,
    *,
    first_row: int = 0,
    implementation: Literal["mosaic_gpu", "xla"] = "mosaic_gpu",
) -> Query:
    """Return attention by the kernels for Hopper; `implementation="xla"` is tokamax's own definition, for tests."""
    num_rows = query.shape[1]
    end = first_row + num_rows
    blocks = None
    if implementation == "mosaic_gpu":
        kind, head_dim = device_kind_here(), query.shape[3]
        blocks = blocks_of(kind, str(query.dtype), head_dim=head_dim, num_rows=num_rows, first_row=first_row)
    attend, mask_of = _op(blocks)
    # `is_causal` lets the backward pass skip blocks after the diagonal, but only of rows that start at the first key.
    ends = {"is_causal": True} if first_row == 0 else {"k_end": jnp.arange(first_row + 1, end + 1, dtype=jnp.int32)}
    begins = document_begins(segment_ids[:, :end])[:, None, first_row:]

    def attended(query: Query, key: KeyValue, value: KeyValue, begins: Array) -> Query:
        mixed: Query = attend(query, key, value, logits_scale=1.0, mask=mask_of(k_start=begins, **ends))
        return mixed

    # A function of the program, so that unrolled layers share its kernels, which take seconds each to compile.
    return jax.jit(attended)(query, key[:, :end], value[:, :end], begins)


def blocks_of(device_kind: str, dtype: str, *, head_dim: int, num_rows: int, first_row: int) -> MosaicBlocks:
    """Return the block sizes; raise ValueError where the kernel does not take the queries, or is not installed."""
    if dtype not in ("bfloat16", "float16"):
        raise ValueError(
            f"attention kernel 'tokamax': the queries are {dtype}, and it takes bfloat16 and float16; compute in "
            "bfloat16, or use attention kernel 'chunked'."
        )
    blocks = mosaic_blocks(device_kind, head_dim=head_dim, num_rows=num_rows, first_row=first_row)
    if (why := missing()) is not None:
        raise ValueError(f"attention kernel 'tokamax': {why}.")
    return blocks


def version_for(jax: str) -> str:
    """Return the version of tokamax for that version of JAX."""
    return OF_JAX_0_10 if jax.startswith("0.10.") else OF_LATER_JAX


def missing() -> str | None:
    """Return why the kernel cannot run here, with the fix; None if it can."""
    try:
        found = f"is {importlib.metadata.version('tokamax')}"
    except importlib.metadata.PackageNotFoundError:
        found = "is not installed"
    jax = importlib.metadata.version("jax")
    needed = version_for(jax)
    if found == f"is {needed}":
        return None
    return (
        f"the package tokamax {found}, and JAX {jax} needs {needed}, whose private ops the kernel calls; run "
        f"`pip install tokamax=={needed}`"
    )


def _op(blocks: MosaicBlocks | None) -> tuple[Any, Any]:
    """Return tokamax's attention in these blocks, or in XLA for None; and the class of its masks."""
    from absl import flags

    # tokamax asks absl for its options, which would read, and refuse, the command line of this process.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    # The package is optional, and loads flax and orbax.
    from tokamax._src.ops.attention import base, pallas_mosaic_gpu, pallas_mosaic_gpu_vjp

    if blocks is None:
        return base.DotProductAttention(), base.Mask
    backward = pallas_mosaic_gpu_vjp.Config(
        block_q_dkv=blocks.query_backward,
        block_kv_dkv=blocks.key_backward,
        block_q_dq=blocks.query_backward,
        block_kv_dq=blocks.key_of_query_gradient,
        num_stages=blocks.num_stages_backward,
    )
    forward = pallas_mosaic_gpu.ConfigSM90(block_q=blocks.query, block_kv=blocks.key, num_stages=blocks.num_stages)
    vjp = pallas_mosaic_gpu_vjp.PallasMosaicGpuFlashAttentionVjp(config=backward)
    return pallas_mosaic_gpu.PallasMosaicGpuFlashAttention(config=forward, vjp=vjp), base.Mask
