"""Control: whatever asks a run to stop or to save becomes one word, acted on between two updates.

All hosts act on it at the same one. Exit always saves. A request is read once a step; with several hosts `agree` makes
the largest word of all the word of each (each host acting on its own flag is how a collective save hangs). A host that
waits for data does not come to that question by itself: it asks `is_asked`, and comes to it if any host is to stop.
"""

import contextlib
import enum
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from runtime.training.stop_notice import StopNotice

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""SIGTERM: what schedulers send before they kill. SIGUSR2: what Slurm sends ahead of the time limit."""


class Word(enum.IntEnum):
    """What a run is to do next; where several ask, the larger wins."""

    GO_ON = 0
    SAVE = 1
    SAVE_AND_EXIT = 2


class Control:
    """Gathers requests to stop: signals, and `should_stop`, which the loop asks once a step."""

    def __init__(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        agree: Callable[[int], int] = lambda word: word,
        notice: StopNotice | None = None,
    ) -> None:
        """With several hosts, `agree` maps this one's word to that of all, and `notice` is heard by those that wait."""
        self._should_stop = should_stop
        self._agree = agree
        self._notice = notice
        self._word = Word.GO_ON
        self.reason = ""
        """Who asked, for the event log."""

    def request(self, word: Word, reason: str) -> None:
        """Asks from any thread, or from a signal handler."""
        if word > self._word:
            self._word, self.reason = word, reason

    def word(self, *, is_save_due: bool = False) -> Word:
        """What to do before the next update; all hosts ask, once for each update.

        `is_save_due` goes by the clock of this host, which is not that of others.
        """
        self._hear_driver()
        if self._notice is not None and self._word == Word.SAVE_AND_EXIT:
            self._notice.leave()  # before the others are waited for
        agreed = Word(self._agree(int(max(self._word, Word.SAVE if is_save_due else Word.GO_ON))))
        if agreed == Word.SAVE_AND_EXIT:
            self.request(agreed, "another host was asked to stop")
        return agreed

    def is_asked(self) -> bool:
        """For a host that waits for its batch: whether any host is to stop. If so, it asks for the `word` at once."""
        self._hear_driver()
        return self._word == Word.SAVE_AND_EXIT or (self._notice is not None and self._notice.is_left())

    def _hear_driver(self) -> None:
        if self._word == Word.GO_ON and self._should_stop():
            self.request(Word.SAVE_AND_EXIT, "the driver asked to stop")

    @contextlib.contextmanager
    def listening(self) -> Iterator[bool]:
        """Hears signals inside the block; yields False in a thread other than the main one, which cannot."""
        if threading.current_thread() is not threading.main_thread():
            yield False
            return

        def hear(number: int, frame: FrameType | None) -> None:
            self.request(Word.SAVE_AND_EXIT, f"signal {signal.Signals(number).name}")

        before = {number: signal.signal(number, hear) for number in SIGNALS}
        try:
            yield True
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
