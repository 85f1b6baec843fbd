"""Generated code: runs programs that a model wrote, each in a process that can only compute and read files.

The kernel refuses the process everything else (`confined`); processor time, time, memory and output have limits. The
programs of HumanEval and MBPP need no more.
"""

import contextlib
import functools
import math
import os
import platform
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from runtime.evaluation import confined

PROCESSOR_SECONDS = 10
SECONDS = 60.0
"""Limit of elapsed time, for a program that sleeps."""
MEMORY_BYTES = 1 << 30
METRIC = "code_eval"
"""Name of the metric; the library `evaluate` would fetch its code from a hub."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class GeneratedCodeError(RuntimeError):
    """Generated code that is not allowed to run, or that this machine cannot confine."""


def passes(program: str, *, processor_seconds: int = PROCESSOR_SECONDS, seconds: float = SECONDS) -> bool:
    """Return whether a program runs to its end.

    Raises:
        GeneratedCodeError: this machine cannot confine a program.
    """
    _check_machine()
    return _passes(program, processor_seconds, seconds)


def _passes(program: str, processor_seconds: int, seconds: float) -> bool:
    token = secrets.token_hex(16).encode()
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    # Names the module through its function, so that its code is part of the step's fingerprint.
    command = [sys.executable, "-m", confined.main.__module__, str(processor_seconds), str(MEMORY_BYTES)]
    # A file and no pipe: the process has a limit for what it writes to files.
    with tempfile.TemporaryFile() as answer:
        try:
            subprocess.run(
                command,
                input=token + b"\n" + program.encode(errors="replace"),
                stdout=answer,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment,
                timeout=seconds,
                check=False,
                start_new_session=True,  # without the user's terminal
            )
        except subprocess.TimeoutExpired:
            return False
        answer.seek(0)
        return answer.read() == token


@functools.cache
def _check_machine() -> None:
    """Raise GeneratedCodeError unless an empty program runs to its end, and a program that opens a socket does not."""
    if not _passes("", 10, SECONDS) or _passes("import socket; socket.socket()", 10, SECONDS):
        raise GeneratedCodeError(
            f"generated code cannot be confined under {platform.system()} on {platform.machine()} here; score these "
            "tasks under Linux on x86_64 or aarch64, where the kernel allows seccomp filters."
        )


class CodeEval:
    """The metric `code_eval`, with the interface that lm-eval's tasks call."""

    def compute(
        self, *, references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]
    ) -> tuple[dict[str, float], None]:
        """Return pass@k for each k: the share of draws of k programs with one that passes (arXiv:2107.03374).

        In a gang, host 0 alone runs programs, and its values alone are kept; on the others no program counts as passed.
        """
        import jax

        is_first = jax.process_index() == 0
        values: dict[str, list[float]] = {f"pass@{each}": [] for each in k}
        for test, programs in zip(references, predictions, strict=True):
            num_passed = sum(passes(f"{program}\n{test}") for program in programs) if is_first else 0
            for each in k:
                failed = math.comb(len(programs) - num_passed, each) / math.comb(len(programs), each)
                values[f"pass@{each}"].append(1 - failed)
        return {name: math.fsum(found) / len(found) for name, found in values.items()}, None


@contextlib.contextmanager
def local_code_eval() -> Iterator[None]:
    """Let `evaluate.load` return `CodeEval` for the metric until the end of the block."""
    import evaluate

    fetch = evaluate.load

    def load(path: str, *arguments: Any, **options: Any) -> Any:
        return CodeEval() if path == METRIC else fetch(path, *arguments, **options)

    evaluate.load = load
    try:
        yield
    finally:
        evaluate.load = fetch
