"""Polled: a value that all threads share, read from the store at most every few seconds."""

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from marin_dag.store.store import StoreError

POLL_SECONDS = 4.0
"""Drivers report progress every ten seconds."""
Value = TypeVar("Value")


class Polled(Generic[Value]):
    """Newest value of `read` for several threads; one thread reads while the others wait for it."""

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._last_read = -math.inf
        self._is_outdated = True
        self._value: Value | None = None
        self._failure: StoreError | OSError | None = None
        """The error of the last read, for all threads; otherwise each would wait for the store in turn."""

    def get(self) -> Value:
        """Return the value, read again after `POLL_SECONDS` or `outdate`; raise the errors of the store."""
        with self._lock:
            if self._is_outdated or time.monotonic() - self._last_read >= POLL_SECONDS:
                self._is_outdated = False  # set before the read, since the read may miss a change that comes meanwhile
                try:
                    self._value, self._failure = self._read(), None
                except (StoreError, OSError) as error:
                    self._failure = error
                self._last_read = time.monotonic()
            if self._failure is not None:
                raise self._failure
            assert self._value is not None
            return self._value

    def outdate(self) -> None:
        """Let the next `get` read again; takes no lock, so that a read that hangs delays no caller."""
        self._is_outdated = True
