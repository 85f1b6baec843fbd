"""Control: whatever asks a run to stop or to save becomes one word, acted on between two updates.

All hosts act on it at the same one. Exit always saves. A request is read once a step; with several hosts `agree` makes
the largest word of all the word of each (each host acting on its own flag is how a collective save hangs).

A host that waits for data does not come to that question by itself: it asks `is_asked`, and comes to it if any host is
to stop. The others wait for it in the agreement meanwhile, where a main thread hears nothing: threads hear for it, and
leave the notice that `is_asked` finds.
"""

import contextlib
import enum
import logging
import signal
import threading
from collections.abc import Callable, Iterator

from runtime.training.signals import heard
from runtime.training.stop_notice import StopNotice

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""SIGTERM: what schedulers send before they kill. SIGUSR2: what Slurm sends ahead of the time limit."""
POLL_SECONDS = 1.0
"""How often the threads ask the driver, and look whether the other hosts are to be told."""

logger = logging.getLogger(__name__)


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
        kept_handlers: tuple[type, ...] = (),
    ) -> None:
        """With several hosts, `agree` maps this one's word to that of all, and `notice` is heard by those that wait.

        With a notice `should_stop` is asked by a thread too; never by two at once. Signal handlers of the
        classes `kept_handlers` go on hearing, beside this.
        """
        self._should_stop = should_stop
        self._asking = threading.Lock()
        self._agree = agree
        self._notice = notice
        self._kept_handlers = kept_handlers
        self._is_exit_asked = False  # set from any thread and from signal handlers, in one assignment
        self._is_exit_agreed = False
        self.reason = ""
        """Who asked to stop, for the event log."""

    def request_exit(self, reason: str) -> None:
        """Asks from any thread, or from a signal handler, and for good."""
        if not self._is_exit_asked:
            self.reason = reason  # first: whoever sees the wish may read it
            self._is_exit_asked = True

    def word(self, *, is_save_due: bool = False) -> Word:
        """What to do before the next update; all hosts ask, once for each update.

        `is_save_due` goes by the clock of this host, which is not that of others.
        """
        self._hear_driver()
        word = Word.SAVE if is_save_due else Word.GO_ON
        agreed = Word(self._agree(int(Word.SAVE_AND_EXIT if self._is_exit_asked else word)))
        if agreed == Word.SAVE_AND_EXIT:
            self._is_exit_agreed = True
            self.request_exit("another host was asked to stop")
        return agreed

    def is_asked(self) -> bool:
        """For a host that waits for its batch: whether any host is to stop. If so, it asks for the `word` at once."""
        self._hear_driver()
        if not self._is_exit_asked and self._notice is not None and self._notice.is_left():
            # Who left it may have said its word for this update before, and then it is for this host to say.
            self.request_exit("another host was asked to stop")
        return self._is_exit_asked

    @contextlib.contextmanager
    def listening(self) -> Iterator[bool]:
        """Hears signals inside the block; yields False in a thread other than the main one, which cannot.

        With a notice, threads ask the driver and tell the other hosts while this one waits for them.
        """
        with contextlib.ExitStack() as stack:
            if self._notice is not None:
                stack.enter_context(_repeated(self._poll_driver, "asks the driver"))
                stack.enter_context(_repeated(self._tell_others, "tells the other hosts"))
            is_main = threading.current_thread() is threading.main_thread()
            if is_main:
                stack.enter_context(heard(SIGNALS, self._hear_signal, kept=self._kept_handlers))
            yield is_main

    def _hear_signal(self, number: signal.Signals) -> None:
        self.request_exit(f"signal {number.name}")

    def _hear_driver(self) -> None:
        with self._asking:
            if not self._is_exit_asked and self._should_stop():
                self.request_exit("the driver asked to stop")

    def _poll_driver(self) -> None:
        try:
            self._hear_driver()
        except Exception as error:  # the loop asks the same, and meets it in its own thread
            logger.warning("the driver cannot be asked whether to stop (%s: %s)", type(error).__name__, error)

    def _tell_others(self) -> None:
        # Not once all have agreed: a thousand hosts would write one file, and nobody would look for it.
        if self._notice is not None and self._is_exit_asked and not self._is_exit_agreed:
            self._notice.leave()


@contextlib.contextmanager
def _repeated(function: Callable[[], None], what: str) -> Iterator[None]:
    """A thread that calls `function` every `POLL_SECONDS` inside the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(POLL_SECONDS):
            function()

    thread = threading.Thread(target=repeat, name=what, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
