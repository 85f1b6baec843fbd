"""Activity: what the thread that makes batches is doing, so that a waiting reader knows the cause of its wait."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Literal

Cause = Literal["cache not built yet", "store read", "losses of earlier updates", "drawing"]
"""Causes of data stalls. Drawing is all work that waits neither for a store nor for another process."""


class ActivityStoppedError(RuntimeError):
    """The reader has gone; raised in the thread that makes batches, where it waits."""


class Activity:
    """Seconds by cause of one thread; readable from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._cause: Cause = "drawing"
        self._since = time.perf_counter()
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def during(self, cause: Cause) -> Iterator[None]:
        """Count the time inside for `cause`; the innermost cause counts."""
        before = self._cause
        self._turn_to(cause)
        try:
            yield
        finally:
            self._turn_to(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by cause up to now."""
        self._turn_to(None)
        return dict(self._seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise ActivityStoppedError as soon as `stop` is called."""
        if self._stopped.wait(seconds):
            raise ActivityStoppedError("the reader of these batches has gone")

    def stop(self) -> None:
        self._stopped.set()

    def _turn_to(self, cause: Cause | None) -> None:
        with self._lock:
            now = time.perf_counter()
            self._seconds[self._cause] = self._seconds.get(self._cause, 0.0) + now - self._since
            self._cause, self._since = cause or self._cause, now


class _Watched(threading.local):
    """The activity of the current thread; a thread that no reader watches has one of its own."""

    def __init__(self) -> None:
        self.activity = Activity()


_watched = _Watched()


def watch(activity: Activity) -> None:
    """Record what the current thread does from now on in `activity`."""
    _watched.activity = activity


def during(cause: Cause) -> contextlib.AbstractContextManager[None]:
    """Count the time inside for `cause` in the activity of the current thread."""
    return _watched.activity.during(cause)


def sleep(seconds: float) -> None:
    """Sleep, or raise ActivityStoppedError as soon as the reader of the current thread has gone."""
    _watched.activity.sleep(seconds)
