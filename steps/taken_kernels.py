"""Taken kernels: which kernels an evaluation computed with, their block sizes and why, as its result keeps them."""

from pydantic import BaseModel


class TakenKernels(BaseModel, frozen=True, extra="forbid"):
    """In the words of a phase's event log, which has those of its updates."""

    attention: str
    loss: str | None
    """None where no kernel of a loss runs."""
    reason: str
    blocks: dict[str, str]
    """Block sizes of each, by "attention" and "loss"."""
