"""Hearing: what a running attempt is told, looked for by a thread of its own, and answered by it.

The step asks as often as it likes and never waits for the store. A store that does not answer stops no step; it is
told in the log, once for each way in which it fails.
"""

import logging
import threading
from collections.abc import Sequence

from marin_dag.errors import UserError
from marin_dag.ledger.requests import STOP, Telling, Tellings

TOLD_POLL_SECONDS = 5.0
"""A listing each time, of what lies below one short path."""


class Hearing:
    """What is told to one attempt. Its thread begins when the step first asks: most steps are over before that."""

    def __init__(
        self, tellings: Tellings, digest: str, attempt: str, log: logging.Logger, *, old: frozenset[str] = frozenset()
    ) -> None:
        """`old` are the ids of what was told before the run of this attempt began, which is the newer word."""
        self._tellings, self._digest, self._attempt, self._log = tellings, digest, attempt, log
        self._old = old
        self._lock = threading.Lock()
        self._pending: tuple[Telling, ...] = ()
        self._answers: list[tuple[Telling, str, bool]] = []
        self._known: set[str] = set()
        self._failures: set[str] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def stop(self) -> Telling | None:
        """Who told the step to stop, if anybody did."""
        return next((telling for telling in self._heard() if telling.word == STOP), None)

    def others(self) -> Sequence[Telling]:
        """What else it was told and has not answered, the oldest first."""
        return [telling for telling in self._heard() if telling.word != STOP]

    def answer(self, telling: Telling, said: str, *, is_refused: bool = False) -> None:
        """Answers, for whoever told it; the store hears of it when the thread looks next."""
        self._log.info("%s; answer: %s", telling.said, said)
        with self._lock:
            self._pending = tuple(other for other in self._pending if other.id != telling.id)
            self._answers.append((telling, said, is_refused))

    def close(self, *, stopped: str = "", unheard: str = "") -> None:
        """Ends the thread, and answers what is left.

        Args:
            stopped: what to answer to who told the step to stop; "" leaves it to the next attempt.
            unheard: what to answer to all others, whose wish is refused; likewise.
        """
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        for telling in self._pending:
            said = stopped if telling.word == STOP else unheard
            if said:
                self.answer(telling, said, is_refused=telling.word != STOP)
        self._write_answers()

    def _heard(self) -> tuple[Telling, ...]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="hears what it is told", daemon=True)
            self._thread.start()
        return self._pending

    def _listen(self) -> None:
        while not self._ended.is_set():
            self._look()
            self._write_answers()
            self._ended.wait(TOLD_POLL_SECONDS)

    def _look(self) -> None:
        try:
            new = self._tellings.of(self._digest, known=self._known)
            answered = self._tellings.answered(self._digest) if new else frozenset()
        except (UserError, OSError) as error:
            self._warn("what it is told cannot be seen", error)
            return
        for damaged in self._tellings.damaged.values():
            self._warn_once(damaged)
        self._known |= {telling.id for telling in new}
        # A stop that another attempt has answered is one all the same: that one has left for it.
        heard = [telling for telling in new if telling.id not in answered or telling.word == STOP]
        # A milestone is wanted of whoever comes by it.
        overtaken = [telling for telling in heard if telling.id in self._old and telling.milestone is None]
        with self._lock:
            self._pending += tuple(telling for telling in heard if telling not in overtaken)
        for telling in overtaken:
            if telling.id not in answered:
                self.answer(telling, "nobody heard it; a run that was started later goes on", is_refused=True)

    def _write_answers(self) -> None:
        while self._answers:
            telling, said, is_refused = self._answers[0]
            try:
                self._tellings.answer(telling, self._attempt, said, is_refused=is_refused)
            except (UserError, OSError) as error:
                self._warn("an answer could not be given", error)
                return  # it is tried again at the next look
            with self._lock:
                self._answers.pop(0)

    def _warn(self, what: str, error: Exception) -> None:
        self._warn_once(f"{what} ({type(error).__name__}: {error}); the step goes on")

    def _warn_once(self, message: str) -> None:
        if message not in self._failures:
            self._failures.add(message)
            self._log.warning("%s", message)
