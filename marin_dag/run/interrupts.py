"""Interrupts: handlers for Ctrl-C, SIGTERM and SIGUSR2 (which Slurm sends before the time limit)."""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is Ctrl-C, or pydantic's error for a Ctrl-C while it built a model."""
    is_from_pydantic = type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error)
    return is_from_pydantic or isinstance(error, KeyboardInterrupt)


@dataclasses.dataclass(frozen=True)
class DriverHandler:
    """Handler of a driver. A step in the driver's process that installs its own finds it by this class and calls it."""

    on_signal: Callable[[int, FrameType | None], None]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.on_signal(number, frame)


@contextlib.contextmanager
def signals_handled(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[Callable[[], object]]:
    """Call `on_signal` for each signal inside the block; yield a function that installs it again.

    Outside the main thread, which alone gets signals, do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def install() -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, DriverHandler(on_signal)) for number in SIGNALS}

    previous = install()
    try:
        yield install
    finally:
        for number, handler in previous.items():
            if handler is not None:  # one that was installed before Python, which cannot restore it
                signal.signal(number, handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
