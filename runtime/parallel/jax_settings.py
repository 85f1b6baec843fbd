"""JAX settings: what decides the bits of a program is pinned or recorded, and compiled programs are kept.

A variable in a user's environment (`JAX_ENABLE_X64=1`) would otherwise make another run of the same digest.
"""

import contextlib
import hashlib
import os
import platform
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax

from runtime.cache_folder import cache_folder

PINNED: dict[str, bool | int] = {
    "jax_threefry_partitionable": True,  # other first weights, and on several devices others again
    "jax_enable_x64": False,
    "jax_random_seed_offset": 0,
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
}
"""Settings that change numbers. Matrix products have their precision from the program (`matmul_precision`), keys name
their generator, and stricter promotion of dtypes changes no number."""
PROGRAMS = "programs"
"""Name of the compiled programs' cache folder."""
MOST_BYTES_OF_PROGRAMS = 4 << 30
"""The programs used least recently go first."""
LEAST_COMPILE_SECONDS = 0.1
ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""Beginning of a program that JAX has compressed with the package zstandard, where that is installed beside it."""
RECORDED = ("JAX_", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "XLA_PYTHON_")
"""Beginnings of environment variables that may change how a program is compiled."""
HARMLESS = (
    *("JAX_PLATFORMS", "JAX_COMPILATION_CACHE", "JAX_ENABLE_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"),
    *("JAX_LOG", "JAX_DEBUG", "JAX_DUMP", "JAX_TRACEBACK", "JAX_NUM_CPU_DEVICES", "JAX_COORDINATOR"),
    *("JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION", "JAX_DEFAULT_MATMUL_PRECISION"),
    *("JAX_DEFAULT_PRNG_IMPL", "JAX_RAISE_PERSISTENT_CACHE_ERRORS", "XLA_PYTHON_CLIENT"),
)
"""Beginnings of those that change no number of this project's programs."""
HARMLESS_FLAGS = ("--xla_cpu_collective_call_", "--xla_dump_", "--xla_force_host_platform_device_count")
"""Beginnings of flags in XLA_FLAGS that change no number."""


def settle_jax() -> None:
    """Pin the settings that change numbers, and keep compiled programs on this machine. Call it before JAX compiles."""
    for name, value in PINNED.items():
        jax.config.update(name, value)
    _keep_programs()


def changed_by_environment() -> str:
    """Return the variables of the environment that may change a program, or "nothing"."""
    return "; ".join(_changes()) or "nothing"


def _changes() -> Iterator[str]:
    pinned = {name.upper() for name in PINNED}
    for name, value in sorted(os.environ.items()):
        if not name.startswith(RECORDED) or name.startswith(HARMLESS) or name in pinned:
            continue
        if name == "XLA_FLAGS":
            value = " ".join(sorted(flag for flag in value.split() if not flag.startswith(HARMLESS_FLAGS)))
        if value:
            yield f"{name}={value}"


def _keep_programs() -> None:
    """Use a persistent cache of compiled programs, unless the user has chosen one or none.

    Its writers take turns by a lock, and JAX's key covers versions, flags and devices, but not what a CPU can run.
    """
    if getattr(jax.config, "jax_compilation_cache_dir") is not None:  # noqa: B009 -- made at run time
        return
    try:
        folder = cache_folder(PROGRAMS) / _machine()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_torn(folder)
    except (OSError, RuntimeError):  # no home, or one that cannot be written; every program is compiled again
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES_OF_PROGRAMS)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_COMPILE_SECONDS)


def _remove_torn(folder: Path) -> None:
    """Remove what a killed process has half written: JAX would fail to read it, and never write it again.

    Reads each program once. One that another process is writing is removed too, and costs that compile again.
    """
    checked, now = folder / "checked", time.time()
    last = checked.stat().st_mtime if checked.exists() else 0.0
    for program in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if program.stat().st_mtime >= last and not _is_whole(program.read_bytes()):
                program.unlink()
    checked.touch()
    os.utime(checked, (now, now))


def _is_whole(program: bytes) -> bool:
    """Return whether a compressed program ends where its compressor ended it; True for another compressor than zlib."""
    if program.startswith(ZSTANDARD):
        return True
    ended = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        ended.decompress(program)
    return ended.eof


def processor() -> str:
    """Return the model of the CPU, which JAX does not know and XLA compiles for."""
    models = (line.partition(":")[2].strip() for line in _cpu_facts() if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def _machine() -> str:
    """Return a name for what this machine's processor can run."""
    text = "\n".join([platform.machine(), platform.processor(), *_cpu_facts()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_facts() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part")
    return sorted({line for line in lines if line.partition(":")[0].strip() in kinds})
