"""Interrupts: Ctrl-C and SIGTERM, heard by the driver while it runs."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[Callable[[], None]]:
    """Calls `on_signal` for each signal inside the block, if this is the main thread; others cannot hear.

    Yields what to call when a library may have put a handler of its own in place: Ray's would end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def handler(number: int, frame: FrameType | None) -> None:
        on_signal(number, frame)

    # For `runtime.training.signals`: a phase that runs in this process hears signals itself.
    handler.hears_always = True  # type: ignore[attr-defined]

    def listen() -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, handler) for number in SIGNALS}

    previous = listen()

    def listen_again() -> None:
        listen()

    try:
        yield listen_again
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
