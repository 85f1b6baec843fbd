"""Taken kernels: the kernels of a step, their block sizes and why; for its log and beside its output."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from runtime.kernels.kernel_shape import KernelShape


class TakenKernels(NamedTuple):
    """Kernels of attention and loss."""

    attention: str
    loss: str
    reason: str
    blocks: dict[str, str]
    """Block sizes, by "attention" and "loss"."""

    def described(self) -> dict[str, str]:
        """Return the facts for `StepContext.computed_with`."""
        return {
            "attention": f"{self.attention}: {self.blocks['attention']}",
            "loss": f"{self.loss}: {self.blocks['loss']}",
            "reason": self.reason,
        }


def take_kernels(shape: "KernelShape", *, attention_kernel: str | None, loss_kernel: str | None) -> TakenKernels:
    """Return the requested kernels, or the fastest that are known to be right; every host of a gang must call this.

    Raises:
        ValueError: one cannot run here or not at the shape, or this host would use others than the first.
    """
    from runtime.training.kernel_choice import check_same_on_hosts, chosen_kernels, described_blocks

    kernels = chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    check_same_on_hosts(kernels)
    blocks = described_blocks(kernels.attention, kernels.loss, shape)
    return TakenKernels(**kernels._asdict(), blocks=blocks)


def refuse_wrong_kernels(kernels: TakenKernels, mesh: "Mesh") -> None:
    """Check the loss kernel against its definition, before its first use; every host of a gang must call this.

    Raises:
        RuntimeError: the loss kernel gives wrong numbers on the devices of `mesh`.
    """
    from runtime.training.ratio_check import check_ratios

    if kernels.loss == "mosaic_gpu":
        check_ratios(mesh)
