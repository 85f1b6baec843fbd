"""Watchdog: ends a process whose device no longer answers, so that its launcher starts it again.

A collective that waits for a lost host or chip raises nothing and waits for ever. BLOOM-176B lost 35 hours to such
hangs. Only waits for the device are watched; data, checkpoints and agreements between hosts may take their time.
"""

import collections
import contextlib
import faulthandler
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from runtime.training.background import repeated

logger = logging.getLogger(__name__)

HANG_SECONDS = 600.0
"""The shortest wait that counts as a hang."""
HANG_FACTOR = 20.0
"""A hang also takes this many times longer than the longest recent wait, since a step or a batch may be long."""
REMEMBERED_WAITS = 100
SETTLING_ANSWERS = 3
"""First answers, which compile for as long as they need and predict no later wait."""
FLUSH_SECONDS = 20.0
"""Pause before the process ends: its log reaches a bucket every fifteen seconds."""
EXIT_CODE = 70


class Watchdog:
    """Watches the waits for the device of one run.

    Args:
        what: the name of one answer: a "step", a "batch".
        on_hang: receives the number of the missing answer and the seconds waited, after both are logged.
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
        """The awaited answer and the start of the wait; replaced as a whole, so that the thread needs no lock."""

    @contextlib.contextmanager
    def awaits(self, number: int) -> Iterator[None]:
        """Time a wait for the device inside the block: answer `number`."""
        began = time.monotonic()
        self._waiting = number, began
        try:
            yield
        finally:
            self._waiting = None
        if self._num_answered >= SETTLING_ANSWERS:
            self._waits.append(time.monotonic() - began)
        self._num_answered += 1

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Check for hangs in a thread, inside the block."""
        return repeated(self._check, pause_seconds=lambda: self.patience_seconds / 10, name="device watchdog")

    @property
    def patience_seconds(self) -> float:
        """The longest time that an answer may take."""
        return max(HANG_SECONDS, HANG_FACTOR * max(self._waits, default=0.0))

    def _check(self) -> None:
        waiting = self._waiting
        if waiting is None or self._num_answered < SETTLING_ANSWERS:
            return
        number, began = waiting
        seconds = time.monotonic() - began
        if seconds <= self.patience_seconds:
            return
        try:
            self._report(number, seconds)
        except Exception as error:  # a full disk or a failing bucket is no reason to wait for ever
            logger.error("the hang could not be reported (%s: %s)", type(error).__name__, error)
        time.sleep(FLUSH_SECONDS)
        if self._waiting == waiting:  # otherwise the device has answered after all
            self._end(EXIT_CODE)

    def _report(self, number: int, seconds: float) -> None:
        logger.error(
            "%s %d: no answer from the device for %.0f s; earlier answers took at most %.3g s. A host or a chip is "
            "gone, or waits for one that is gone. This process ends and is started again; training resumes from its "
            "last checkpoint.",
            *(self._what, number, seconds, max(self._waits, default=0.0)),
        )
        self._on_hang(number, seconds)
        logger.error("stacks of this process:\n%s", _stacks())


def _stacks() -> str:
    """Return the stacks of all threads, including those that wait inside a library."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
