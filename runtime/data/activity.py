"""Activity: what the thread that makes batches is doing, so that who waits for it can say what it waited for."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Literal

Cause = Literal["cache not built yet", "store read", "packing", "losses of earlier updates", "drawing"]
"""What a batch may be waited for. Drawing is all that needs neither the store nor anybody else."""


class ActivityStoppedError(RuntimeError):
    """Nobody wants what is being made any more; raised in the thread that makes it, where it waits."""


class Activity:
    """Seconds by cause, of one thread; read from any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._cause: Cause = "drawing"
        self._since = time.perf_counter()
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def during(self, cause: Cause) -> Iterator[None]:
        """What is done inside is done for `cause`; the innermost counts."""
        before = self._cause
        self._turn_to(cause)
        try:
            yield
        finally:
            self._turn_to(before)

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far by cause, up to this moment; the difference of two calls is what lay between."""
        with self._lock:
            found = dict(self._seconds)
            found[self._cause] = found.get(self._cause, 0.0) + time.perf_counter() - self._since
        return found

    def sleep(self, seconds: float) -> None:
        """Waits so long, or raises ActivityStoppedError as soon as `stop` is called."""
        if self._stopped.wait(seconds):
            raise ActivityStoppedError("what was being read ahead is not wanted any more")

    def stop(self) -> None:
        """Lets go whoever sleeps."""
        self._stopped.set()

    def _turn_to(self, cause: Cause) -> None:
        with self._lock:
            now = time.perf_counter()
            self._seconds[self._cause] = self._seconds.get(self._cause, 0.0) + now - self._since
            self._cause, self._since = cause, now
