"""CopyQueue: outputs that are to be copied, side by side, each again after a pause where the error may pass.

A target that is full refuses all of them, so that none is tried before somebody may have made room.
"""

import heapq
import itertools
import threading
import time
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from marin_dag.keep.copy.copy_errors import AtWorkThereError, CopyCancelledError, is_full
from marin_dag.keep.copy.copying import Copied, Copier
from marin_dag.ledger.epoch import LeaseLostError
from marin_dag.store.retry import is_transient

OUTPUTS_AT_ONCE = 4
"""Small outputs cost round trips and no bytes; the files of all together are `CHECKSUM_THREADS` at once."""
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
FULL_PAUSE_SECONDS = 600.0
"""Where the target is full: each try may write until it is full again."""
LAST_TRIES = 3
"""Of an output that fails, once nothing more will come: somebody waits for the end."""


class CopyListener(Protocol):
    """Hears, in the threads of the queue, what becomes of each output."""

    def on_copied(self, copied: Copied) -> None:
        """It is at the target."""

    def on_postponed(self, key: str, pause_seconds: float, error: Exception) -> None:
        """It is tried again after a pause."""

    def on_failed(self, key: str, error: Exception) -> None:
        """It is given up."""

    def on_full(self, keys: Collection[str], error: Exception) -> None:
        """The target is full; heard once, and again where something was copied since. `keys` are given up for it: none
        as long as more may come, since somebody may make room."""


class CopyQueue:
    """Takes keys from any thread; one digest is under way once, since its lease is held once.

    Args:
        copier: copies one output.
        listener: hears of it.
    """

    def __init__(self, copier: Copier, listener: CopyListener) -> None:
        self._copier, self._listener = copier, listener
        self._waiting: dict[str, None] = {}
        self._due: list[tuple[float, int, str]] = []
        """A heap of those that wait: when each is tried; of equals the first that came."""
        self._behind: dict[str, list[tuple[float, int, str]]] = {}
        """Taken from it, by the digest that is under way."""
        self._order = itertools.count()
        self._tries: Counter[str] = Counter()
        self._under_way: dict[str, str] = {}
        """Digest to key."""
        self._is_ending = False
        self._is_full = False
        self._begins_again = 0.0
        """When the next is tried after the target was full."""
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, name=f"copies {number}", daemon=True)
            for number in range(OUTPUTS_AT_ONCE)
        ]

    def start(self) -> None:
        """Begins to copy."""
        for thread in self._threads:
            thread.start()

    def add(self, key: str) -> None:
        """Takes an output to copy."""
        with self._changed:
            if key not in self._under_way.values() and key not in self._waiting:
                self._wait_until(0.0, key)
            self._changed.notify()

    @property
    def left(self) -> tuple[str, ...]:
        """Keys that are under way or still to be."""
        with self._changed:
            return (*self._under_way.values(), *self._waiting)

    def end(self) -> None:
        """Nothing more will be added: what fails now is tried `LAST_TRIES` times more."""
        with self._changed:
            self._is_ending = True
            self._begins_again = 0.0
            self._tries.clear()
            self._due = [(0.0, order, key) for _, order, key in self._due]
            self._behind = {
                digest: [(0.0, order, key) for _, order, key in behind] for digest, behind in self._behind.items()
            }
            heapq.heapify(self._due)
            self._changed.notify_all()

    def is_over(self, timeout_seconds: float) -> bool:
        """Whether all has been copied or given up, after waiting for that no longer than the timeout."""
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self) -> None:
        """Leaves what is under way, and all that is left."""
        self._copier.cancel()
        with self._changed:
            self._is_ending = True
            self._forget_waiting()

    def _forget_waiting(self) -> list[str]:
        keys = list(self._waiting)
        for waiting in (self._waiting, self._due, self._behind):
            waiting.clear()
        self._changed.notify_all()
        return keys

    def _work(self) -> None:
        while (key := self._next()) is not None:
            try:
                copied = self._copier.copy(key)
                with self._changed:
                    self._is_full = self._is_full and copied.what != "copied"
                self._listener.on_copied(copied)
            except CopyCancelledError:
                pass
            except Exception as error:  # whatever it is, it must not end the thread without a word
                if is_full(error):
                    self._hold(key, error)
                else:
                    self._postpone_or_fail(key, error)
            finally:
                with self._changed:
                    digest = key.partition("@")[0]
                    del self._under_way[digest]
                    for entry in self._behind.pop(digest, ()):
                        heapq.heappush(self._due, entry)
                    self._changed.notify_all()

    def _next(self) -> str | None:
        """Waits for a key that is due; None when nothing is left and nothing will come."""
        with self._changed:
            while True:
                pause = None
                while self._due:
                    at, _, key = self._due[0]
                    digest = key.partition("@")[0]
                    if digest in self._under_way:
                        self._behind.setdefault(digest, []).append(heapq.heappop(self._due))
                        continue
                    pause = max(at, self._begins_again) - time.monotonic()
                    if pause > 0:
                        break
                    heapq.heappop(self._due)
                    del self._waiting[key]
                    self._under_way[digest] = key
                    return key
                if self._is_ending and not self._waiting:
                    return None
                self._changed.wait(pause)

    def _wait_until(self, at: float, key: str) -> None:
        self._waiting[key] = None
        heapq.heappush(self._due, (at, next(self._order), key))

    def _hold(self, key: str, error: Exception) -> None:
        with self._changed:
            was_full, self._is_full = self._is_full, True
            if self._copier.is_cancelled:
                return
            if self._is_ending:
                given_up = [key, *self._forget_waiting()]
            else:
                given_up = []
                self._begins_again = time.monotonic() + FULL_PAUSE_SECONDS
                self._wait_until(self._begins_again, key)
        if given_up or not was_full:
            self._listener.on_full(given_up, error)

    def _postpone_or_fail(self, key: str, error: Exception) -> None:
        may_pass = isinstance(error, LeaseLostError) or is_transient(error)
        may_pass = may_pass or (isinstance(error, AtWorkThereError) and not self._is_ending)
        with self._changed:
            self._tries[key] += 1
            num_tries, is_ending = self._tries[key], self._is_ending
            if self._is_ending and self._copier.is_cancelled:
                return
            if may_pass and (not is_ending or num_tries <= LAST_TRIES):
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (num_tries - 1), LONGEST_PAUSE_SECONDS)
                self._wait_until(time.monotonic() + pause, key)
            else:
                pause = None
        if pause is None:
            self._listener.on_failed(key, error)
        else:
            self._listener.on_postponed(key, pause, error)
