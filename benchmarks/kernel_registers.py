"""Registers of CUDA kernels by its assembler, what did not fit in them, and whether products wait for each other.

The compiler writes the assembly of each kernel to a folder (`xla_dump_to`); `ptxas`, of the package nvidia-cuda-nvcc,
makes machine code of it and reports. More than what a thread may have (255) goes to memory and back in the inner loop.
"""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

PTXAS = Path("bin", "ptxas")
_TARGET = re.compile(r"^\.target (\S+)", re.MULTILINE)
_ENTRY = re.compile(r"\.entry ([\w$]+)")
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


def registers_of(folder: Path, names: tuple[str, ...]) -> dict[str, Registers]:
    """Return the registers of the kernels `names`, whose assembly the compiler has written to `folder`.

    Raises:
        LookupError: one of them is not there.
    """
    found = {}
    for path in sorted(folder.glob("*.ptx")):
        text = path.read_text()
        if set(_ENTRY.findall(text)) & set(names):
            found.update(_assembled(path, text))
    if missing := [name for name in names if name not in found]:
        raise LookupError(f"no assembly of {', '.join(missing)} in {folder}")
    return {name: found[name] for name in names}


def toolkit() -> Path:
    """Return the folder of the installed package with CUDA's assembler.

    Raises:
        RuntimeError: there is none.
    """
    spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        if Path(place, PTXAS).exists():
            return Path(place)
    raise RuntimeError("no ptxas: run `make .venv-cuda/ready`, or install nvidia-cuda-nvcc-cu12.")


def registers_in(text: str) -> dict[str, Registers]:
    """Return the registers of every kernel in the assembler's report; a warning names no kernel, and counts for all."""
    is_serialized = any(warning in text for warning in _SERIALIZED)
    return {name: Registers(int(used), int(spilled), is_serialized) for name, spilled, used in _REPORT.findall(text)}


def _assembled(path: Path, text: str) -> dict[str, Registers]:
    target = _TARGET.search(text)
    if target is None:
        raise LookupError(f"{path}: no .target, which says for which GPU it is")
    finished = subprocess.run(
        [str(toolkit() / PTXAS), "-v", f"-arch={target[1].rstrip(',')}", str(path), "-o", "/dev/null"],
        capture_output=True,
        text=True,
    )
    found = registers_in(finished.stderr)
    if finished.returncode or not found:
        raise RuntimeError(f"ptxas refused {path}:\n{finished.stderr[-2000:]}")
    return found
