"""Watchdog: ends a process whose device no longer answers, so that whoever started it starts it again.

A collective that waits for a host or a chip that is gone hears no exception, and waits for ever: BLOOM-176B lost 35
hours to such hangs. Only what waits for the device is watched: data, checkpoints, other hosts' words and held-out text
take the time that they take, and are told of elsewhere.
"""

import collections
import contextlib
import faulthandler
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from runtime.tracking.events import EventLog
from runtime.training.repetition import repeated

logger = logging.getLogger(__name__)

HANG_SECONDS = 600.0
"""The least time without an answer that is a hang."""
HANG_FACTOR = 20.0
"""And so many times the longest of the last waits: an update may be long."""
REMEMBERED_WAITS = 100
SETTLING_UPDATES = 3
"""The first compile, for as long as they like."""
LAST_WORDS_SECONDS = 20.0
"""Before the process ends: its log is written to a bucket every fifteen seconds."""
EXIT_CODE = 70


class Watchdog:
    """Watches the waits for the device of one run."""

    def __init__(self, events: EventLog, *, end: Callable[[int], object] = os._exit) -> None:
        self._events, self._end = events, end
        self._waits: collections.deque[float] = collections.deque(maxlen=REMEMBERED_WAITS)
        self._num_answered = 0
        self._waiting: tuple[int, float] | None = None
        """The update that is waited for, and since when; replaced as a whole, so that the thread needs no lock."""

    @contextlib.contextmanager
    def awaits(self, step: int) -> Iterator[None]:
        """While the device is asked for what it made of the update that ends with `step`."""
        began = time.monotonic()
        self._waiting = step, began
        try:
            yield
        finally:
            self._waiting = None
        self._waits.append(time.monotonic() - began)
        self._num_answered += 1

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """A thread that looks, inside the block."""
        return repeated(self._look, pause_seconds=lambda: self.patience_seconds / 10, name="watches the device")

    @property
    def patience_seconds(self) -> float:
        """How long an answer may take."""
        return max(HANG_SECONDS, HANG_FACTOR * max(self._waits, default=0.0))

    def _look(self) -> None:
        waiting = self._waiting
        if waiting is None or self._num_answered < SETTLING_UPDATES:
            return
        step, began = waiting
        seconds = time.monotonic() - began
        if seconds <= self.patience_seconds:
            return
        logger.error(
            "step %d: the device has not answered for %.0f s, and its updates took %.3g s at most: a host or a chip is "
            "gone, or waits for one that is. This process ends, and the step is tried again from its last checkpoint. "
            "Where its threads are:\n%s",
            *(step, seconds, max(self._waits, default=0.0), _stacks()),
        )
        self._events.write("hang", step=step, waited_seconds=round(seconds, 1))
        time.sleep(LAST_WORDS_SECONDS)
        if self._waiting == waiting:  # else it has answered after all
            self._end(EXIT_CODE)


def _stacks() -> str:
    """Where all threads are, those that wait inside a library among them."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
