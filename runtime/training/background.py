"""Background threads: low priority beside the train step, and functions repeated while a block lasts."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

NICENESS = 10
"""A tenth of the others' weight: enough to finish within some training steps, however busy the cores are."""


def lower_priority() -> None:
    """Lower the priority of the calling thread for good; Linux only, which has a priority for each thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # Never raise it: a process that itself runs in the background may not.
        os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


@contextlib.contextmanager
def repeated(function: Callable[[], object], *, pause_seconds: Callable[[], float], name: str) -> Iterator[None]:
    """Pause and call `function` in a thread called `name`, again and again, inside the block.

    `pause_seconds` is read before each pause. The block ends after a call under way. An exception of `function` ends
    the thread but not the block, so `function` catches what may fail.
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
