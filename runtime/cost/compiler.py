"""Compiler for accelerators that are not here: each program once, in a process of its own, with a cache of outcomes.

The key of an outcome covers the request, the versions of the packages that make and compile the program, and the source
of the modules that make the step, ask for it and judge it. The cache lies in `cache_folder`, never in a prefix.
"""

import functools
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from runtime.cache_folder import cache_folder, keep
from runtime.cost.chips import GIB, slice_of
from runtime.cost.request import OUTCOME, Compiled, CompileRequest, DoesNotFit, Outcome, to_json

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # the accelerators are described, not there
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server to ask
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Any process that has loaded libtpu holds a lock file; a compiler needs no chip to itself.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
NOT_PASSED_ON = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "EQX_")
"""Beginnings of environment variables that a compile must not see: they change the program, and no key covers them."""
COMPILED = "compiled"
"""Name of the outcomes' cache folder."""
COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-pjrt", "jax-cuda13-pjrt")}
"""Packages with a compiler, by platform; the first that is installed is used."""
TOOLS = {"tpu": (), "gpu": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc", "tokamax")}
"""Packages that the compiler calls or that make a part of the program, by platform, where they are installed."""
SOURCES = (
    "cache_folder.py", "cost/chips.py", "cost/collectives.py", "cost/compile_program.py", "cost/compiler.py",
    "cost/described_devices.py", "cost/faults.py", "cost/products.py", "cost/program.py", "cost/request.py",
    "evaluation/described_programs.py", "evaluation/device_memory.py", "evaluation/generation.py",
    "evaluation/packing.py", "evaluation/placed_model.py", "evaluation/sampling.py", "evaluation/scoring.py", "kernels",
    "model", "optim", "parallel", "platform", "same_fields.py", "tracking/parts.py", "training/eval_step.py",
    "training/kernel_choice.py", "training/objective.py", "training/part_norms.py", "training/state.py",
    "training/train_step.py",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
BESIDE = {"tpu": ROOT / ".venv-libtpu", "gpu": ROOT / ".venv-cuda"}
"""Folders where `make` puts the compilers, for the processes that compile. They go before packages of the environment,
since `make` pins their versions."""
_TOO_LARGE = re.compile(r"E100[01]: (CompileTime(?:Hbm|ScopedVmem)Oom: [^\n]*)")


class NoCompilerError(RuntimeError):
    """The platform's compiler is not installed."""

    def __init__(self, platform: str) -> None:
        what, folder = {
            "tpu": ("TPUs needs the package libtpu (590 MB, works without a TPU)", ".venv-libtpu"),
            "gpu": ("GPUs needs JAX's CUDA plugin and CUDA's assembler (220 MB, work without a GPU)", ".venv-cuda"),
        }[platform]
        super().__init__(
            f"compiling for {what}: run `make {folder}/ready`, then the same command again; or leave --compile out."
        )


def outcome_of(request: CompileRequest) -> tuple[Outcome, bool]:
    """Return the outcome of a compile, and whether it came from the cache.

    Raises:
        NoCompilerError: the compiler for its machines is not installed.
        RuntimeError: the compiler failed for another reason than memory; its last lines are in the message.
    """
    kept = cache_folder(COMPILED) / f"{key_of(request)}.json"
    if kept.exists():
        return OUTCOME.validate_json(kept.read_bytes()), True
    found = _compile(request)
    keep(kept, to_json(found))
    return found, False


def packages_of(request: CompileRequest) -> tuple[str, ...]:
    """Return the distributions that make and compile the request's program.

    Raises:
        NoCompilerError: the compiler for its machines is not installed.
    """
    platform = slice_of(request.slice).generation.platform
    tools = [name for name in TOOLS[platform] if _version(name, platform) is not None]
    for name in COMPILERS[platform]:
        if _version(name, platform) is not None:
            return "jax", "jaxlib", "equinox", "optax", name, *tools
    raise NoCompilerError(platform)


def _version(name: str, platform: str) -> str | None:
    """Return the version of a package beside the environment, or else in it.

    Raises:
        RuntimeError: several versions have metadata there; pip leaves those of the old version.
    """
    folder = BESIDE[platform]
    versions = {found.version for found in importlib.metadata.distributions(name=name, path=[str(folder)])}
    if len(versions) > 1:
        raise RuntimeError(
            f"{folder} has metadata of {name} {' and '.join(sorted(versions))}, and can have one of them only. Run "
            f"`rm -r {folder.name}` and `make {folder.name}/ready`."
        )
    if versions:
        return versions.pop()
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def key_of(request: CompileRequest) -> str:
    """Return the name of the outcome: a hash over all that determines it."""
    digest = hashlib.sha256(to_json(request).encode())
    platform = slice_of(request.slice).generation.platform
    for name in packages_of(request):
        digest.update(f"{name} {_version(name, platform)}\n".encode())
    digest.update(sources_digest())
    return digest.hexdigest()[:32]


@functools.cache
def sources_digest() -> bytes:
    """Return the hash of the code that makes and compiles programs."""
    digest = hashlib.sha256()
    for path in _source_files():
        digest.update(path.read_bytes())
    return digest.digest()


def _source_files() -> Iterator[Path]:
    runtime = Path(__file__).resolve().parents[1]
    for name in SOURCES:
        place = runtime / name
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


def environment(platform: str) -> dict[str, str]:
    """Return the environment of a process that compiles for "tpu" or "gpu"."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    path = os.pathsep.join([str(ROOT), str(BESIDE[platform]), os.environ.get("PYTHONPATH", "")])
    return kept | ENVIRONMENT | {"PYTHONPATH": path}


def _compile(request: CompileRequest) -> Outcome:
    finished = subprocess.run(
        [sys.executable, "-m", "runtime.cost.compile_program", to_json(request)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(slice_of(request.slice).generation.platform),
    )
    if finished.returncode == 0:
        found = OUTCOME.validate_json(finished.stdout.splitlines()[-1])
        assert isinstance(found, Compiled)
        gets = slice_of(request.slice).generation.hbm_in_bytes
        if found.peak_memory_in_bytes > gets:  # XLA makes programs for GPUs of any size, and fails when they run
            return DoesNotFit(
                f"{found.peak_memory_in_bytes / GIB:.2f} GiB at its peak, of {gets / GIB:.2f} that JAX takes "
                "(XLA_PYTHON_CLIENT_MEM_FRACTION 0.75)"
            )
        return found
    if (refused := _TOO_LARGE.search(finished.stderr)) is not None:
        return DoesNotFit(refused[1])
    last = "\n".join(finished.stderr.strip().splitlines()[-15:])
    raise RuntimeError(f"compiling the {request.step} step for {request.num_slices} x {request.slice} failed:\n{last}")
