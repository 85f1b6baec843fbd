"""Interrupts: Ctrl-C, SIGTERM and SIGUSR2 (Slurm, ahead of the time limit), heard by the driver while it runs."""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class DriverHandler:
    """The handler of a driver, by its class: a step that listens for itself in the driver's process calls it too."""

    on_signal: Callable[[int, FrameType | None], None]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.on_signal(number, frame)


@contextlib.contextmanager
def heard(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[Callable[[], None]]:
    """Calls `on_signal` for each signal inside the block, if this is the main thread; others cannot hear.

    Yields what to call when a library may have put a handler of its own in place: Ray's would end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def listen() -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, DriverHandler(on_signal)) for number in SIGNALS}

    previous = listen()

    def listen_again() -> None:
        listen()

    try:
        yield listen_again
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
