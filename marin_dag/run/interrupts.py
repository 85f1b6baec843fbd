"""Interrupts: Ctrl-C, SIGTERM and SIGUSR2 (Slurm, ahead of the time limit), heard by the driver while it runs."""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from marin_dag.errors import UserError

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

    Raises:
        UserError: one has a handler that Python does not know, and could not put back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    if foreign := [number.name for number in SIGNALS if signal.getsignal(number) is None]:
        raise UserError(
            f"{', '.join(foreign)}: what handles it in this process was there before Python, which could not put it "
            "back after the run; start the run from a process without that handler."
        )

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


def interrupt(number: int, frame: FrameType | None) -> None:
    """For `heard`: each of them as Ctrl-C, which a command ends by."""
    raise KeyboardInterrupt
