"""Control: whatever asks a run to stop, save, publish or profile becomes one order, carried out between two updates.

All hosts carry it out at the same one. Exit always saves. A request is read once a step; with several hosts `agree`
makes the largest order of all the order of each (each host acting on its own flag is how a collective save hangs).

A host that waits for data does not come to that question by itself: it asks `is_asked`, and comes to it if any host is
to stop. The others wait for it in the agreement meanwhile, where a main thread hears nothing: threads hear for it, and
leave the notice that `is_asked` finds.
"""

import contextlib
import enum
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from runtime.training.repetition import repeated
from runtime.training.signals import heard
from runtime.training.stop_notice import StopNotice

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""SIGTERM: what schedulers send before they kill. SIGUSR2: what Slurm sends ahead of the time limit."""
POLL_SECONDS = 1.0
"""How often the threads ask the driver, and look whether the other hosts are to be told."""
STEP_LIMIT = 2**48
"""Beyond any step."""

logger = logging.getLogger(__name__)


class Word(enum.IntEnum):
    """What a run is to do next; where several ask, the larger wins, and the others are asked again an update later."""

    GO_ON = 0
    PROFILE = 1
    SAVE = 2
    PUBLISH = 3
    SAVE_AND_EXIT = 4


class Request(NamedTuple):
    """What a person wants of a run."""

    id: str
    word: Word
    """Neither to go on nor to exit."""
    step: int | None
    """Which to publish; None is the next."""
    said: str
    """Who wants it and why, for the event log."""
    answer: Callable[[str], None]
    """Takes how it is done, or will be, one line; called once, unless `refuse` is."""
    refuse: Callable[[str], None]
    """Takes why it will not be."""


class Order(NamedTuple):
    """What all hosts do before the next update."""

    word: Word
    step: int = 0
    """Which to publish."""
    requests: tuple[Request, ...] = ()
    """Those of this host that it is for."""

    @property
    def number(self) -> int:
        """By which hosts agree on it: of two words the larger has the larger number."""
        return self.word * STEP_LIMIT + self.step

    def answer(self, said: str) -> None:
        """To all that have asked for it."""
        for request in self.requests:
            request.answer(said)

    def answer_published(self, step: int, path: str) -> None:
        """To who wants the very next step, once `step` is saved: the next attempt would know nothing of the request."""
        if self.word == Word.PUBLISH and self.step == step:
            self.answer(f"published step {step:,}: {path}")

    def refuse(self, said: str) -> None:
        """Likewise, where it will not be."""
        for request in self.requests:
            request.refuse(said)


class Control:
    """Gathers requests: signals, `stop_reason`, which the loop asks once a step, and what people want of the run."""

    def __init__(
        self,
        stop_reason: Callable[[], str] = lambda: "",
        *,
        requests: Callable[[], Sequence[Request]] = lambda: (),
        agree: Callable[[int], int] = lambda order: order,
        notice: StopNotice | None = None,
        kept_handlers: tuple[type, ...] = (),
    ) -> None:
        """`stop_reason` says who asks to stop, "" while nobody does; `requests` what is asked and not answered.

        With several hosts, `agree` maps the number of this one's order to that of all, and `notice` is heard by those
        that wait. With a notice `stop_reason` is asked by a thread too; never by two at once. Signal handlers of the
        classes `kept_handlers` go on hearing, beside this.
        """
        self._stop_reason = stop_reason
        self._requests = requests
        self._taken: set[str] = set()
        """Ids of the requests that are answered, or will be."""
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

    def order(self, step: int, *, until_step: int, is_save_due: bool = False) -> Order:
        """What to do before the update that follows `step` finished ones; all hosts ask, once for each update.

        `is_save_due` goes by the clock of this host, which is not that of others.
        """
        self._hear_driver()
        wanted = self._wanted(step, until_step)
        if self._is_exit_asked:
            wanted = Order(Word.SAVE_AND_EXIT)
        elif wanted.word == Word.GO_ON and is_save_due:
            wanted = Order(Word.SAVE)
        word, of_step = divmod(self._agree(wanted.number), STEP_LIMIT)
        if word == Word.SAVE_AND_EXIT:
            self._is_exit_agreed = True
            self.request_exit("another host was asked to stop")
        if (word, of_step) != (wanted.word, wanted.step):
            return Order(Word(word), of_step)  # what this host wants is asked again at the next update
        self._taken |= {request.id for request in wanted.requests}
        return wanted

    def _wanted(self, step: int, until_step: int) -> Order:
        """What people want of this run next; who wants what it cannot do is told so."""
        new = [request for request in self._requests() if request.id not in self._taken]
        for request in new:
            if request.word != Word.PUBLISH:
                continue
            of_step = step + 1 if request.step is None else request.step
            if step < of_step <= until_step:
                return Order(Word.PUBLISH, of_step, tuple(same for same in new if same[1:3] == request[1:3]))
            self._taken.add(request.id)
            past = f"it is past step {of_step:,}, at {step:,}"
            ahead = f"this run stops at {until_step:,}; one that goes on to {of_step:,} publishes it"
            request.refuse(ahead if of_step > until_step else past)
        for word in (Word.SAVE, Word.PROFILE):
            if same := tuple(request for request in new if request.word == word):
                return Order(word, 0, same)
        return Order(Word.GO_ON)

    def is_asked(self) -> bool:
        """For a host that waits for its batch: whether any host is to stop. If so, it asks for the `order` at once."""
        self._hear_driver()
        if not self._is_exit_asked and self._notice is not None and self._notice.is_left():
            # Who left it may have said its order for this update before, and then it is for this host to say.
            self.request_exit("another host was asked to stop")
        return self._is_exit_asked

    @contextlib.contextmanager
    def listening(self) -> Iterator[bool]:
        """Hears signals inside the block; yields False in a thread other than the main one, which cannot.

        With a notice, threads ask the driver and tell the other hosts while this one waits for them.
        """
        with contextlib.ExitStack() as stack:
            if self._notice is not None:
                for ask, name in ((self._poll_driver, "asks the driver"), (self._tell_others, "tells the other hosts")):
                    stack.enter_context(repeated(ask, pause_seconds=lambda: POLL_SECONDS, name=name))
            is_main = threading.current_thread() is threading.main_thread()
            if is_main:
                stack.enter_context(heard(SIGNALS, self._hear_signal, kept=self._kept_handlers))
            yield is_main

    def _hear_signal(self, number: signal.Signals) -> None:
        self.request_exit(f"signal {number.name}")

    def _hear_driver(self) -> None:
        with self._asking:
            if not self._is_exit_asked and (reason := self._stop_reason()):
                self.request_exit(reason)

    def _poll_driver(self) -> None:
        try:
            self._hear_driver()
        except Exception as error:  # the loop asks the same, and meets it in its own thread
            logger.warning("the driver cannot be asked whether to stop (%s: %s)", type(error).__name__, error)

    def _tell_others(self) -> None:
        # Not once all have agreed: a thousand hosts would write one file, and nobody would look for it.
        if self._notice is not None and self._is_exit_asked and not self._is_exit_agreed:
            self._notice.leave()
