"""GPU attention of tokamax: Google's kernels for Hopper, an optional package. Never run on a GPU here.

tokamax is told where the document of each query begins, and that later keys are not seen: a number a query, and no mask
of tokens x tokens. Forward, blocks of keys before the documents of a block of queries are not touched; backward they
are, and are left out number by number. Of a whole row neither pass touches the blocks after the diagonal; of a stretch
the backward pass computes all of its rows and columns. Its public function takes no such numbers, so that its op and
its mask are called, which are private, and one version of it is taken, exactly.

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

import jax.numpy as jnp

from runtime.kernels.attention_chunked import document_begins
from runtime.kernels.attention_gpu import refuse_dtype
from runtime.kernels.block_sizes import device_kind_here, mosaic_blocks
from runtime.kernels.shapes import KeyValue, Query, SegmentIds
from runtime.kernels.tuned_blocks import MosaicBlocks

VERSION = "0.0.12"
"""The one whose source was read; pyproject.toml has it as the extra `tokamax`."""
JAX_SERIES = "0.10."
"""What its kernels are written for: with JAX 0.12 they fail while they are traced, and later versions of tokamax need
Python 3.12."""


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
    mixed: Query = attend(query, key[:, :end], value[:, :end], logits_scale=1.0, mask=mask_of(k_start=begins, **ends))
    return mixed


def refuse_versions() -> None:
    """Raises where the package is not installed, is of another version, or has no kernels for this JAX."""
    try:
        found = f"is {importlib.metadata.version('tokamax')}"
    except importlib.metadata.PackageNotFoundError:
        found = "is not installed"
    if not (jax := importlib.metadata.version("jax")).startswith(JAX_SERIES):
        raise ValueError(
            f"attention kernel 'tokamax': tokamax {VERSION} has its kernels for JAX {JAX_SERIES}x, and this is "
            f"JAX {jax}; use another attention kernel."
        )
    if found != f"is {VERSION}":
        raise ValueError(
            f"attention kernel 'tokamax': the package tokamax {found}, and {VERSION} is needed, whose private ops the "
            f"kernel calls; run `pip install tokamax=={VERSION}`."
        )


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
        block_kv_dq=blocks.key_backward,
        num_stages=blocks.num_stages_backward,
    )
    forward = pallas_mosaic_gpu.ConfigSM90(block_q=blocks.query, block_kv=blocks.key, num_stages=blocks.num_stages)
    vjp = pallas_mosaic_gpu_vjp.PallasMosaicGpuFlashAttentionVjp(config=backward)
    return pallas_mosaic_gpu.PallasMosaicGpuFlashAttention(config=forward, vjp=vjp), base.Mask
