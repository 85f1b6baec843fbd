"""Registers of CUDA kernels by its assembler, what did not fit in them, and whether products wait for each other.

`ptxas`, of the package nvidia-cuda-nvcc, reports them. More than what a thread may have (255) goes to memory and
back in the inner loop.
"""

import re
from typing import NamedTuple

_REPORT = re.compile(
    r"Compiling entry function '([^']+)'.*?(\d+) bytes spill stores, \d+ bytes spill loads.*?Used (\d+) registers",
    re.DOTALL,
)
_SERIALIZED = ("C7510", "C7511", "C7512", "C7515")
"""Warnings of ptxas: asynchronous products of Hopper's (wgmma) that are run one after the other."""


class Registers(NamedTuple):
    """Registers of one thread of a kernel."""

    used: int
    spilled_bytes: int
    """Written to memory for want of registers."""
    is_serialized: bool


def registers_in(text: str) -> dict[str, Registers]:
    """Return the registers of every kernel in the assembler's report; a warning names no kernel, and counts for all."""
    is_serialized = any(warning in text for warning in _SERIALIZED)
    return {name: Registers(int(used), int(spilled), is_serialized) for name, spilled, used in _REPORT.findall(text)}
