"""Contestants that share one GPU: each in a process of its own, on the GPU one after the other.

A process first does what computes nothing on the GPU (loading libraries and lowering take longer than what is timed),
says so, and waits. The next ones do that while another has its turn. JAX looks at the GPU as it lowers: one that waits
holds half a GiB of it.
"""

import contextlib
import json
import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

AHEAD = 2
"""Processes that prepare themselves while another has its turn."""
READY, GO = "ready", "go"

Measure = Callable[[], dict[str, Any]]
"""Stages of contestants that have finished their work without a GPU."""
Whose = tuple[str, str]
"""A side, and what it competes in."""


def wait_for_turn(measure: Measure) -> None:
    """Report that this contestant is ready, wait for its turn, and print what it measures."""
    print(READY, flush=True)
    if input() == GO:
        print(json.dumps(measure()))


class InTurn:
    """The commands of the contestants, each started before its turn."""

    def __init__(self, commands: Iterable[tuple[Whose, Sequence[str]]]) -> None:
        self._waiting = iter(commands)
        self._begun: deque[tuple[Whose, subprocess.Popen[str]]] = deque()
        for _ in range(AHEAD):
            self._begin()

    def measured(self, side: str, name: str, *, may_fail: bool = False) -> dict[str, Any]:
        """Return what the next contestant measured, or "failed".

        Raises:
            SystemExit: it failed, and may not.
            ValueError: another one is next.
        """
        whose, process = self._begun[0]
        if whose != (side, name):
            raise ValueError(f"the turn is {' '.join(whose)}'s, not {side} {name}'s")
        self._begun.popleft()
        self._begin()
        try:
            last = _taken_its_turn(process)
        finally:
            process.kill()  # not if it has ended
        if process.returncode and may_fail:
            return {"failed": f"exit code {process.returncode}; its error is above"}
        if process.returncode:
            raise SystemExit(f"{side} {name} failed with exit code {process.returncode}; its error is above.")
        found: dict[str, Any] = json.loads(last)
        return found

    def close(self) -> None:
        """End the contestants that had no turn."""
        for _, process in self._begun:
            process.kill()
            process.communicate()

    def _begin(self) -> None:
        following = next(self._waiting, None)
        if following is None:
            return
        whose, command = following
        # JAX would take three quarters of the memory as soon as it looks at the GPU.
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        pipe = subprocess.PIPE
        self._begun.append((whose, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)))


def _taken_its_turn(process: "subprocess.Popen[str]") -> str:
    """Return the last line that a contestant prints; lines of libraries come before it is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == READY:
            with contextlib.suppress(BrokenPipeError):  # it died while it waited: its exit code says so
                print(GO, file=process.stdin, flush=True)
            break
    *_, last = process.communicate()[0].splitlines() or [""]
    return last
