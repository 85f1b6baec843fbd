"""Taken kernels: which kernels a step computed with, their block sizes and why; for its log and beside its output."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from runtime.kernels.kernel_shape import KernelShape


class TakenKernels(NamedTuple):
    """Those of the attention and of the loss."""

    attention: str
    loss: str
    reason: str
    blocks: dict[str, str]
    """Block sizes of each, by "attention" and "loss"."""

    def described(self) -> dict[str, str]:
        """In the words of `StepContext.computed_with`."""
        return {
            "attention": f"{self.attention}: {self.blocks['attention']}",
            "loss": f"{self.loss}: {self.blocks['loss']}",
            "reason": self.reason,
        }


def take_kernels(shape: "KernelShape", *, attention_kernel: str | None, loss_kernel: str | None) -> TakenKernels:
    """Those that are asked for, or else the fastest that are known to be right here; each host of a gang must ask.

    Raises:
        ValueError: one cannot run here or not at the shape, or this host would take others than the first.
    """
    from runtime.training.kernel_choice import check_same_on_hosts, chosen_kernels, described_blocks

    kernels = chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    check_same_on_hosts(kernels)
    blocks = described_blocks(kernels.attention, kernels.loss, shape)
    return TakenKernels(**kernels._asdict(), blocks=blocks)


def refuse_wrong_kernels(kernels: TakenKernels, mesh: "Mesh") -> None:
    """Before anything is computed with them, and behind what tells of them; each host of a gang must ask.

    Raises:
        RuntimeError: the loss kernel gives wrong numbers on the devices of `mesh`.
    """
    from runtime.training.ratio_check import check_ratios

    if kernels.loss == "mosaic_gpu":
        check_ratios(mesh)
