"""Repetition: a function that a thread of its own calls every so often, as long as a block lasts."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeated(function: Callable[[], object], *, pause_seconds: Callable[[], float], name: str) -> Iterator[None]:
    """A thread called `name` that pauses and calls `function`, again and again, inside the block.

    `pause_seconds` is asked before each pause, for it may change. The block ends when a call under way has ended. An
    exception of `function` ends the thread, and not the block: what may fail in it, it catches.
    """
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(pause_seconds()):
            function()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
