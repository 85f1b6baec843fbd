"""Watchdog: ends a process whose device no longer answers, so that whoever started it starts it again.

A collective that waits for a host or a chip that is gone hears no exception, and waits for ever: BLOOM-176B lost 35
hours to such hangs, in updates and in evaluations. Only what waits for the device is watched: data, checkpoints and
other hosts' words take the time that they take, and are told of elsewhere.
"""

import collections
import contextlib
import faulthandler
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from runtime.training.repetition import repeated

logger = logging.getLogger(__name__)

HANG_SECONDS = 600.0
"""The least time without an answer that is a hang."""
HANG_FACTOR = 20.0
"""And so many times the longest of the last waits that count: an update, or a batch of an evaluation, may be long."""
REMEMBERED_WAITS = 100
SETTLING_ANSWERS = 3
"""The first compile, for as long as they like, and say nothing of how long the others take."""
LAST_WORDS_SECONDS = 20.0
"""Before the process ends: its log is written to a bucket every fifteen seconds."""
EXIT_CODE = 70


class Watchdog:
    """Watches the waits for the device of one run.

    Args:
        what: its answers come one by one: a "step", a "batch".
        on_hang: told the number of the answer that does not come, and after how many seconds; the log has it already.
        end: ends the process.
    """

    def __init__(
        self,
        what: str = "step",
        *,
        on_hang: Callable[[int, float], None] = lambda number, seconds: None,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._what, self._on_hang, self._end = what, on_hang, end
        self._waits: collections.deque[float] = collections.deque(maxlen=REMEMBERED_WAITS)
        self._num_answered = 0
        self._waiting: tuple[int, float] | None = None
        """The answer that is waited for, and since when; replaced as a whole, so that the thread needs no lock."""

    @contextlib.contextmanager
    def awaits(self, number: int) -> Iterator[None]:
        """While the device is asked for what it made of a step, or a batch."""
        began = time.monotonic()
        self._waiting = number, began
        try:
            yield
        finally:
            self._waiting = None
        if self._is_settled:
            self._waits.append(time.monotonic() - began)
        self._num_answered += 1

    @property
    def _is_settled(self) -> bool:
        return self._num_answered >= SETTLING_ANSWERS

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """A thread that looks, inside the block."""
        return repeated(self._look, pause_seconds=lambda: self.patience_seconds / 10, name="watches the device")

    @property
    def patience_seconds(self) -> float:
        """How long an answer may take."""
        return max(HANG_SECONDS, HANG_FACTOR * max(self._waits, default=0.0))

    def _look(self) -> None:
        waiting = self._waiting
        if waiting is None or not self._is_settled:
            return
        number, began = waiting
        seconds = time.monotonic() - began
        if seconds <= self.patience_seconds:
            return
        try:
            self._tell(number, seconds)
        except Exception as error:  # a full disk, a bucket: what cannot be told is no reason to wait for ever
            logger.error("the hang could not be told (%s: %s)", type(error).__name__, error)
        time.sleep(LAST_WORDS_SECONDS)
        if self._waiting == waiting:  # else it has answered after all
            self._end(EXIT_CODE)

    def _tell(self, number: int, seconds: float) -> None:
        logger.error(
            "%s %d: the device has not answered for %.0f s, and its answers took %.3g s at most: a host or a chip is "
            "gone, or waits for one that is. This process ends, and what it was about is tried again, a training from "
            "its last checkpoint.",
            *(self._what, number, seconds, max(self._waits, default=0.0)),
        )
        self._on_hang(number, seconds)
        logger.error("where the threads of this process are:\n%s", _stacks())


def _stacks() -> str:
    """Where all threads are, those that wait inside a library among them."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
