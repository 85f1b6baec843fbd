"""Which kernels a platform runs by default and why; and why a named one cannot run there."""

import logging
import zlib
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from runtime.kernels import (
    attention,
    attention_chunked,
    attention_gpu,
    attention_tokamax,
    block_sizes,
    cross_entropy,
    cross_entropy_chunked,
    cross_entropy_gpu,
)
from runtime.kernels.kernel_shape import KernelShape
from runtime.kernels.scatter_blocks import ScatterKernel, layer_scatter_blocks, scatter_row
from runtime.kernels.tuned_blocks import MIB, MosaicBlocks, SplashBlocks, TritonBlocks
from runtime.model.config import ModelConfig
from runtime.parallel.hosts import of_first_host
from runtime.parallel.mesh import first_data_axis

logger = logging.getLogger(__name__)


class KernelChoice(NamedTuple):
    """Names to pass to `build_train_step`, and the reason to print beside them."""

    attention: str
    loss: str
    reason: str


_ONLY_ON = {
    "splash": ("tpu", "a Mosaic TPU kernel"),
    "pallas_tpu": ("tpu", "a Mosaic TPU kernel"),
    "pallas_gpu": ("gpu", "a Triton GPU kernel"),
    "cudnn": ("gpu", "a kernel of cuDNN"),
    "tokamax": ("gpu", "a Mosaic GPU kernel"),
    "mosaic_gpu": ("gpu", "a Mosaic GPU kernel"),
}


_LOSS_AT_ONCE = "loss: gradients formed while the logits are there"


def _not_by_mosaic(shape: KernelShape) -> str | None:
    """Why `tokamax` is not the default for rows of this shape on this GPU."""
    if shape.compute_dtype != "bfloat16":
        return f"tokamax takes no {shape.compute_dtype}"
    try:
        block_sizes.mosaic_blocks(
            shape.device_kind, head_dim=shape.head_dim, num_rows=shape.stretch, first_row=shape.first_row
        )
    except ValueError as error:
        return _why(error)
    return attention_tokamax.missing()


def _not_by_triton(shape: KernelShape) -> str | None:
    """Why `pallas_gpu` is not, either."""
    if (family := block_sizes.family_of(shape.device_kind)) is None:
        return f"pallas_gpu was never compiled for {shape.device_kind}"
    if shape.compute_dtype != "bfloat16":
        return f"pallas_gpu in {shape.compute_dtype} keeps tens of KB a thread in memory, not in registers"
    try:
        block_sizes.triton_blocks(family, head_dim=shape.head_dim, num_rows=shape.stretch)
    except ValueError as error:
        return _why(error)
    return None


def _why(error: ValueError) -> str:
    """Without the kernel's name before it and the advice after it."""
    return str(error).partition(": ")[2].partition(";")[0]


def _refuse_mosaic_loss(shape: KernelShape) -> None:
    cross_entropy_gpu.refuse_shape(
        shape.device_kind,
        num_tokens=shape.num_tokens,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        compute_dtype=shape.compute_dtype,
    )


def _for_gpus(shape: KernelShape) -> KernelChoice:
    """By what was timed on an H200 (docs/gpu.md); of other GPUs nothing was."""
    if (no_mosaic := _not_by_mosaic(shape)) is None:
        attention, why = "tokamax", "documents are kept apart by where they begin, without a mask"
    elif (no_triton := _not_by_triton(shape)) is None:
        attention, why = "pallas_gpu", f"scores stay in registers; not tokamax, because {no_mosaic}"
    else:
        attention, why = "chunked", f"one block of scores at a time, because {no_triton}"
    try:
        _refuse_mosaic_loss(shape)
    except ValueError as error:
        loss, where = "chunked_wide", f"in memory; not mosaic_gpu, because {_why(error)}"
    else:
        loss, where = "mosaic_gpu", "in registers"
    return KernelChoice(attention, loss, f"attention: {why}; {_LOSS_AT_ONCE}, {where}")


def default_kernels(shape: KernelShape) -> KernelChoice:
    """The fastest kernels of the platform at this shape; `mosaic_gpu` is first made sure of (see `ratio_check`).

    Raises:
        ValueError: no kernels are known for the platform.
    """
    match shape.platform:
        case "tpu":
            return KernelChoice(
                attention="splash",
                loss="chunked_wide",
                reason="attention: scores stay in vector memory, documents are kept apart by segment ids; loss: three "
                "products with the head where pallas_tpu, which needs less memory, takes five",
            )
        case "gpu":
            return _for_gpus(shape)
        case "cpu":
            return KernelChoice(
                attention="chunked",
                loss="chunked",
                reason=f"attention: by blocks of queries, no keys after a block; {_LOSS_AT_ONCE}",
            )
    raise ValueError(f"platform is {shape.platform!r}; kernels are known for cpu, gpu and tpu.")


LEAVE_IT_OUT = " Or leave it out: None takes the default."


def chosen_kernels(
    shape: KernelShape, *, attention_kernel: str | None = None, loss_kernel: str | None = None
) -> KernelChoice:
    """Those that are asked for, and those of `default_kernels` where none is.

    Raises:
        ValueError: one that is asked for is unknown, or cannot run on the platform.
    """
    default = default_kernels(shape)
    asked = {"attention": attention_kernel, "loss": loss_kernel}
    taken = {name: kernel for name, kernel in asked.items() if kernel is not None}
    if not taken:
        return default
    reason = f"{' and '.join(f'{name}_kernel' for name in taken)} as asked for; by default: {default.reason}"
    choice = default._replace(**taken, reason=reason)
    try:
        check_kernels(shape.platform, attention_kernel=choice.attention, loss_kernel=choice.loss)
    except ValueError as error:
        raise ValueError(f"{error}{LEAVE_IT_OUT}") from None
    return choice


def refuse_unlike_hosts(kernels: KernelChoice) -> None:
    """Raises ValueError on each host of a gang that would take other kernels than the first; every host must ask.

    A default depends on what is installed. Hosts that run different programs wait for each other without end.
    """
    named = zlib.crc32(f"{kernels.attention} {kernels.loss}".encode()) >> 1  # 31 bits: the words of hosts have a sign
    if of_first_host(named) != (named,):
        raise ValueError(
            f"this host would take attention kernel {kernels.attention!r} and loss kernel {kernels.loss!r} "
            f"({kernels.reason}), and the first host of the gang others: install the same packages on all of them, or "
            "ask for attention_kernel and loss_kernel by name."
        )


def described_blocks(attention_kernel: str, loss_kernel: str, shape: KernelShape) -> dict[str, str]:
    """The block sizes that the two kernels will take and why: to print, and to store with a run.

    Raises ValueError, as the kernels do, for a shape that one of them does not take. Warns, in the log of the step that
    asks, where those of another generation of TPU are taken.
    """
    taken_as = block_sizes.taken_as(shape.device_kind)
    if taken_as and {attention_kernel, loss_kernel} & {"splash", "pallas_tpu"}:
        logger.warning(
            "%sits block sizes are neither tuned nor known to fit; add rows to runtime/kernels/tuned_blocks.py",
            taken_as,
        )
    return {
        "attention": described_attention_blocks(attention_kernel, shape),
        "loss": described_loss_blocks(loss_kernel, shape),
    }


def described_attention_blocks(kernel: str, shape: KernelShape) -> str:
    """What `described_blocks` says of the attention kernel alone, which raises what that one does."""
    taken_as = block_sizes.taken_as(shape.device_kind)
    match kernel:
        case "splash":
            generation = block_sizes.generation_of(shape.device_kind)
            blocks, reason = block_sizes.splash_blocks(
                generation, head_dim=shape.head_dim, num_rows=shape.stretch, item_bytes=shape.item_bytes
            )
            return f"{_named(blocks)} ({taken_as}{reason})"
        case "pallas_gpu":
            whole_row = shape.first_row + shape.stretch
            family = block_sizes.family_of(shape.device_kind)
            unknown = "" if family else f"unknown GPU {shape.device_kind!r}, taken as an A100: "
            triton = block_sizes.triton_blocks(family, head_dim=shape.head_dim, num_rows=whole_row)
            return f"{_named(triton.blocks)} ({unknown}{triton.reason})"
        case "cudnn":
            attention_gpu.refuse_dtype("cudnn", shape.compute_dtype)
            pairs = shape.stretch * (shape.first_row + shape.stretch)
            return f"chosen by cuDNN (beside a mask of {2 * pairs / MIB:.0f} MiB a sequence)"
        case "tokamax":
            attention_gpu.refuse_dtype("tokamax", shape.compute_dtype)
            mosaic = block_sizes.mosaic_blocks(
                shape.device_kind, head_dim=shape.head_dim, num_rows=shape.stretch, first_row=shape.first_row
            )
            return f"{_named(mosaic.blocks)} ({mosaic.reason})"
        case "chunked":
            return f"query {attention_chunked.query_block(shape.stretch)}"
        case _:
            return "whole rows"


def described_loss_blocks(kernel: str, shape: KernelShape) -> str:
    """The same of the loss kernel."""
    match kernel:
        case "pallas_tpu":
            row = block_sizes.fused_blocks(
                block_sizes.generation_of(shape.device_kind),
                hidden_size=shape.hidden_size,
                num_tokens=shape.num_tokens,
                vocab_size=shape.vocab_size,
                item_bytes=shape.item_bytes,
            )
            *passes, _ = row.blocks
            named = zip(("forward", "hidden_gradient", "head_gradient"), passes, strict=True)
            sizes = ", ".join(f"{name} {rows} x {columns}" for name, (rows, columns) in named)
            return f"{sizes} ({block_sizes.taken_as(shape.device_kind)}{row.reason})"
        case "chunked" | "chunked_wide":
            cut = cross_entropy_chunked.FOR_CPUS if kernel == "chunked" else cross_entropy_chunked.WIDE
            size = cross_entropy_chunked.block_tokens(shape.num_tokens, shape.vocab_size, cut)
            return f"{size} tokens ({cut.num_logits:,} logits at most)"
        case "mosaic_gpu":
            _refuse_mosaic_loss(shape)
            cut, tile = cross_entropy_gpu.CUT, f"{cross_entropy_gpu.TOKENS} x {cross_entropy_gpu.COLUMNS}"
            size = cross_entropy_chunked.block_tokens(shape.num_tokens, shape.vocab_size, cut)
            beyond = f"all anew by chunked_wide where a token's loss is above {cut.largest_loss:g}"
            return f"{size} tokens in tiles of {tile} ({size * shape.vocab_size:,} logits); {beyond}"
        case _:
            return "all tokens"


def _named(blocks: SplashBlocks | TritonBlocks | MosaicBlocks) -> str:
    return ", ".join(f"{name} {size}" for name, size in blocks._asdict().items())


def check_kernels(platform: str, *, attention_kernel: str, loss_kernel: str) -> None:
    """Raises where a kernel is unknown, not installed, or cannot run on `platform`, naming the reason."""
    for argument, name, kernels in (
        ("attention_kernel", attention_kernel, attention.KERNELS),
        ("loss_kernel", loss_kernel, cross_entropy.KERNELS),
    ):
        if name not in kernels:
            raise ValueError(f"{argument} is {name!r}; it must be one of {', '.join(sorted(kernels))}.")
        if name in _ONLY_ON and platform != _ONLY_ON[name][0]:
            raise ValueError(
                f"{argument} is {name!r}, {_ONLY_ON[name][1]}, and the mesh is of platform {platform!r}; "
                f"pass a kernel that default_kernels names there."
            )
    if attention_kernel == "tokamax":
        attention_tokamax.refuse_versions()


def described_scatter(
    kernel: ScatterKernel, mesh: Mesh, model: ModelConfig, shape: KernelShape, reduce_dtype: str
) -> str:
    """In what parts the gradients of layers are scattered, by the columns of their matrices; as `described_blocks`."""
    if kernel == "xla":
        return "by the compiler"
    blocks = layer_scatter_blocks(
        block_sizes.generation_of(shape.device_kind),
        model,
        num_devices=mesh.shape[first_data_axis(mesh)],
        num_tokens=shape.num_tokens * mesh.shape["model"],
        model_parallel=mesh.shape["model"],
        item_bytes=shape.item_bytes,
        sum_bytes=np.dtype(reduce_dtype).itemsize,
    )
    parts = ", ".join(
        f"{columns} columns by {each.columns} each way and {each.tokens} tokens" for columns, each in blocks.items()
    )
    row = scatter_row(block_sizes.generation_of(shape.device_kind))
    return f"{parts} ({block_sizes.taken_as(shape.device_kind)}{row.reason})"
