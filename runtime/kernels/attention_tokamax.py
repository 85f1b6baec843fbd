"""GPU attention of tokamax: Google's kernels for Hopper, optional, and the quickest on an H200 (docs/gpu.md).

tokamax is told where the document of each query begins, and that later keys are not seen: a number a query, and no mask
of tokens x tokens. Forward, blocks of keys before the documents of a block of queries are not touched; backward they
are, and are left out number by number. Of a whole row neither pass touches the blocks after the diagonal; of a stretch
the backward pass computes all of its rows and columns. Its public function takes no such numbers, so that its op and
its mask are called, which are private, and one version of it is taken for each JAX, exactly.

Its source and its assembly add in one order: queries' gradients and those of keys and values come from two kernels
whose programs each own what they write, there is no atomic operation in either, and XLA sums the heads of a group.
Sizes of blocks are told, not looked up in tokamax's tuning files or tried out, which could differ from process to
process.

Why not its Triton kernel, which an A100 could run as well: that one's backward pass makes a mask of tokens x tokens of
the numbers. And never its choice by itself, which goes on to XLA's attention where a kernel cannot run.

Values and gradients are tested with the same mask through tokamax's own attention in XLA, and that both passes become
machine code of an H200.
"""

import importlib.metadata
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from runtime.kernels.attention_chunked import document_begins
from runtime.kernels.attention_gpu import refuse_dtype
from runtime.kernels.block_sizes import device_kind_here, mosaic_blocks
from runtime.kernels.shapes import KeyValue, Query, SegmentIds
from runtime.kernels.tuned_blocks import MosaicBlocks

OF_JAX_0_10, OF_LATER_JAX = "0.0.12", "0.0.17"
"""The versions whose source was read; pyproject.toml has them as the extra `tokamax`. The first fails with JAX 0.12
while it is traced; the second needs JAX 0.11.1 and Python 3.12."""


def tokamax(
    query: Query,
    key: KeyValue,
    value: KeyValue,
    segment_ids: SegmentIds,
    *,
    first_row: int = 0,
    implementation: Literal["mosaic_gpu", "xla"] = "mosaic_gpu",
) -> Query:
    """The kernels for Hopper; `implementation="xla"` computes the same with tokamax's own definition, for tests."""
    num_rows = query.shape[1]
    end = first_row + num_rows
    blocks = None
    if implementation == "mosaic_gpu":
        refuse_dtype("tokamax", str(query.dtype))
        kind, head_dim = device_kind_here(), query.shape[3]
        blocks = mosaic_blocks(kind, head_dim=head_dim, num_rows=num_rows, first_row=first_row).blocks
        refuse_versions()
    attend, mask_of = _op(blocks)
    # Told as causal, the backward pass leaves out what is after the diagonal; that begins at the first key, though.
    ends = {"is_causal": True} if first_row == 0 else {"k_end": jnp.arange(first_row + 1, end + 1, dtype=jnp.int32)}
    begins = document_begins(segment_ids[:, :end])[:, None, first_row:]

    def attended(query: Query, key: KeyValue, value: KeyValue, begins: Array) -> Query:
        mixed: Query = attend(query, key, value, logits_scale=1.0, mask=mask_of(k_start=begins, **ends))
        return mixed

    # A function of the program: layers that are written out one by one then share its kernels, which take seconds each.
    return jax.jit(attended)(query, key[:, :end], value[:, :end], begins)


def version_for(jax: str) -> str:
    """The version of tokamax that is taken with that version of JAX."""
    return OF_JAX_0_10 if jax.startswith("0.10.") else OF_LATER_JAX


def missing() -> str | None:
    """Why it cannot be taken here, and what to do; None if it can: JAX decides which version is needed."""
    try:
        found = f"is {importlib.metadata.version('tokamax')}"
    except importlib.metadata.PackageNotFoundError:
        found = "is not installed"
    jax = importlib.metadata.version("jax")
    needed = version_for(jax)
    if found == f"is {needed}":
        return None
    return (
        f"the package tokamax {found}, and with JAX {jax} {needed} is needed, whose private ops the kernel calls; run "
        f"`pip install tokamax=={needed}`"
    )


def refuse_versions() -> None:
    """Raises where the package is not installed, or is not the version for this JAX."""
    if (why := missing()) is not None:
        raise ValueError(f"attention kernel 'tokamax': {why}.")


def _op(blocks: MosaicBlocks | None) -> tuple[Any, Any]:
    """tokamax's attention in blocks of these sizes, or without any in XLA; and the class of its masks."""
    from absl import flags

    # tokamax asks absl for its options, which would read the command line of this process and refuse what is on it.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    # Not with the module: the package is optional, and loads flax and orbax.
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
