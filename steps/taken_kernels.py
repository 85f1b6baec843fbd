"""Taken kernels: which kernels a step computed with, their block sizes and why; for its log and beside its output."""

from typing import NamedTuple


class TakenKernels(NamedTuple):
    """Those of the attention and of the loss."""

    attention: str
    loss: str | None
    """None where no kernel of a loss runs."""
    reason: str
    blocks: dict[str, str]
    """Block sizes of each, by "attention" and "loss"."""

    def described(self) -> dict[str, str]:
        """In the words of `StepContext.computed_with`."""
        named = {"attention": self.attention, "loss": self.loss}
        taken = {name: f"{kernel}: {self.blocks[name]}" for name, kernel in named.items() if kernel is not None}
        return taken | {"reason": self.reason}
