"""Choice of kernels: the default kernels of a platform with the reason, and checks of kernels chosen by name."""

import logging
import zlib
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from runtime.kernels import (
    attention,
    attention_chunked,
    attention_tokamax,
    block_sizes,
    cross_entropy,
    cross_entropy_chunked,
    cross_entropy_gpu,
)
from runtime.kernels.kernel_shape import KernelShape
from runtime.kernels.scatter_blocks import ScatterKernel, layer_scatter_blocks
from runtime.model.config import ModelConfig
from runtime.parallel.hosts import of_first_host
from runtime.parallel.mesh import first_data_axis

logger = logging.getLogger(__name__)

KERNELS: dict[str, Collection[str]] = {"attention": attention.KERNELS, "loss": cross_entropy.KERNELS}
FASTEST = {
    "tpu": (("splash",), ("chunked_wide",)),
    "gpu": (("tokamax", "chunked"), ("mosaic_gpu", "chunked_wide")),
    "cpu": (("chunked",), ("chunked",)),
}
"""Kernels of attention and of the loss by platform, the fastest first (docs/explanation/gpu.md and tpu.md)."""
USE_DEFAULT = " Or use the default: None."
_ONLY_ON = {
    "splash": ("tpu", "a Mosaic TPU kernel"),
    "tokamax": ("gpu", "a Mosaic GPU kernel"),
    "mosaic_gpu": ("gpu", "a Mosaic GPU kernel"),
}


class KernelChoice(NamedTuple):
    """Names of kernels for `build_train_step`, and the reason for logs."""

    attention: str
    loss: str
    reason: str
    blocks: dict[str, str]
    """Block sizes under "attention" and "loss", and in a training phase under "scatter"."""

    def described(self) -> dict[str, str]:
        """Return the kernels, their blocks and the reason, for the record of a step."""
        kernels = {"attention": self.attention, "loss": self.loss}
        return {name: f"{kernel}: {self.blocks[name]}" for name, kernel in kernels.items()} | {"reason": self.reason}


def default_kernels(shape: KernelShape) -> KernelChoice:
    """Return the fastest kernels of the platform that take this shape, without their blocks.

    Raises:
        ValueError: no kernels are known for the platform.
    """
    if shape.platform not in FASTEST:
        raise ValueError(f"platform is {shape.platform!r}; kernels are known for {', '.join(sorted(FASTEST))}.")
    of_attention, of_loss = FASTEST[shape.platform]
    attention_kernel, why = _fastest(of_attention, attention_blocks, shape)
    loss_kernel, why_loss = _fastest(of_loss, loss_blocks, shape)
    return KernelChoice(attention_kernel, loss_kernel, f"attention: {why}; loss: {why_loss}", {})


def _fastest(
    kernels: tuple[str, ...], blocks_of: Callable[[str, KernelShape], str], shape: KernelShape
) -> tuple[str, str]:
    """Return the first kernel that takes the shape, or else the last, and why."""
    why = "the fastest there"
    for kernel in kernels[:-1]:
        try:
            blocks_of(kernel, shape)
        except ValueError as error:
            # Without the kernel before the reason, and the advice after it.
            why = f"not {kernel}, because {str(error).partition(': ')[2].partition(';')[0].rstrip('.')}"
        else:
            return kernel, why
    return kernels[-1], why


def chosen_kernels(
    shape: KernelShape, *, attention_kernel: str | None = None, loss_kernel: str | None = None
) -> KernelChoice:
    """Return the named kernels, or the default kernel for None, with their blocks.

    Raises:
        ValueError: a kernel is unknown, or cannot run on the platform or at the shape.
    """
    choice = default_kernels(shape)
    arguments = {"attention": attention_kernel, "loss": loss_kernel}
    named = [name for name, kernel in arguments.items() if kernel is not None]
    if named:
        reason = f"{' and '.join(f'{name}_kernel' for name in named)} from the config; default: {choice.reason}"
        choice = KernelChoice(attention_kernel or choice.attention, loss_kernel or choice.loss, reason, {})
    blocks = {}
    for name, kernel, blocks_of in (
        ("attention", choice.attention, attention_blocks),
        ("loss", choice.loss, loss_blocks),
    ):
        try:
            _check_kernel(name, kernel, shape.platform)
            blocks[name] = blocks_of(kernel, shape)
        except ValueError as error:
            raise ValueError(f"{error}{USE_DEFAULT if name in named else ''}") from None
    return choice._replace(blocks=blocks)


def take_kernels(shape: KernelShape, *, attention_kernel: str | None, loss_kernel: str | None) -> KernelChoice:
    """Return `chosen_kernels` on the devices of this run, with a warning for an unknown TPU.

    Every host of a gang must call it. Defaults depend on installed packages, and hosts that run different programs wait
    for each other forever.

    Raises:
        ValueError: as `chosen_kernels`, or the first host has other kernels.
    """
    kernels = chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    named = zlib.crc32(f"{kernels.attention} {kernels.loss}".encode()) >> 1  # 31 bits: hosts exchange signed numbers
    if of_first_host(named) != (named,):
        raise ValueError(
            f"this host has attention kernel {kernels.attention!r} and loss kernel {kernels.loss!r} "
            f"({kernels.reason}), and the first host of the gang has others: install the same packages on all hosts, "
            "or set attention_kernel and loss_kernel by name."
        )
    taken_as = block_sizes.taken_as(shape.device_kind)
    if taken_as and kernels.attention == "splash":
        logger.warning("%sits block sizes are not known to fit; add it to runtime/kernels/block_sizes.py", taken_as)
    return kernels


def attention_blocks(kernel: str, shape: KernelShape) -> str:
    """Return the block sizes of an attention kernel, for logs; raise ValueError if the kernel refuses the shape."""
    kind, head_dim = shape.device_kind, shape.head_dim
    blocks: block_sizes.SplashBlocks | block_sizes.MosaicBlocks
    match kernel:
        case "splash":
            blocks = block_sizes.splash_blocks(
                kind, head_dim=head_dim, num_rows=shape.query_length, item_bytes=shape.item_bytes
            )
        case "tokamax":
            blocks = attention_tokamax.blocks_of(
                kind, shape.compute_dtype, head_dim=head_dim, num_rows=shape.query_length, first_row=shape.first_row
            )
        case "chunked":
            return f"query {attention_chunked.query_block(shape.query_length)}"
        case _:
            return "whole rows"
    return ", ".join(f"{name} {size}" for name, size in blocks._asdict().items())


def loss_blocks(kernel: str, shape: KernelShape) -> str:
    """Return the block sizes of a loss kernel, for logs; raise ValueError if the kernel refuses the shape."""
    cuts = {
        "chunked": cross_entropy_chunked.FOR_CPUS,
        "chunked_wide": cross_entropy_chunked.WIDE,
        "mosaic_gpu": cross_entropy_gpu.CUT,
    }
    if kernel not in cuts:
        return "all tokens"
    if kernel == "mosaic_gpu":
        cross_entropy_gpu.check_shape(
            shape.device_kind,
            num_tokens=shape.num_tokens,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            compute_dtype=shape.compute_dtype,
        )
    size = cross_entropy_chunked.block_tokens(shape.num_tokens, shape.vocab_size, cuts[kernel])
    return f"{size} tokens ({size * shape.vocab_size:,} logits)"


def scatter_blocks(kernel: ScatterKernel, mesh: Mesh, model: ModelConfig, shape: KernelShape, reduce_dtype: str) -> str:
    """Return the block sizes of the scatter of layer gradients, for each number of columns."""
    if kernel == "xla":
        return "by the compiler"
    blocks = layer_scatter_blocks(
        shape.device_kind,
        model,
        num_devices=mesh.shape[first_data_axis(mesh)],
        num_tokens=shape.num_tokens * mesh.shape["model"],
        model_parallel=mesh.shape["model"],
        item_bytes=shape.item_bytes,
        sum_bytes=np.dtype(reduce_dtype).itemsize,
    )
    return ", ".join(
        f"{columns} columns by {each.columns} each way and {each.tokens} tokens" for columns, each in blocks.items()
    )


def check_kernels(platform: str, *, attention_kernel: str, loss_kernel: str) -> None:
    """Raise ValueError if a kernel is unknown or cannot run on `platform`."""
    _check_kernel("attention", attention_kernel, platform)
    _check_kernel("loss", loss_kernel, platform)


def _check_kernel(name: str, kernel: str, platform: str) -> None:
    kernels = KERNELS[name]
    if kernel not in kernels:
        raise ValueError(f"{name}_kernel is {kernel!r}; it must be one of {', '.join(sorted(kernels))}.")
    needed, what = _ONLY_ON.get(kernel, (platform, ""))
    if platform != needed:
        raise ValueError(
            f"{name}_kernel is {kernel!r}, {what}, and the platform of the mesh is {platform!r}; use None for the "
            "default kernel."
        )
