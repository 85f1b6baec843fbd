"""Prefetch: an iterator that a thread keeps ahead of its reader; it measures how long the reader waits, and why."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")
Cause = Literal["cache not built yet", "store read", "losses of earlier updates", "drawing"]
"""Causes of data stalls. Drawing is all work that waits neither for a store nor for another process."""

POLL_SECONDS = 0.1
"""How often a waiting thread checks whether it should stop."""
CALL_BACK_SECONDS = 2.0
"""How often a waiting reader calls `while_waiting`."""


class ActivityStoppedError(RuntimeError):
    """The reader has gone; raised in the thread that makes batches, where it waits."""


class Activity:
    """Seconds of a thread by cause; readable from any other thread."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._cause: Cause = "drawing"
        self._since = time.perf_counter()

    def turn_to(self, cause: Cause | None) -> Cause:
        """Count the time so far for the cause before, and return that cause; None keeps it."""
        with self._lock:
            now, before = time.perf_counter(), self._cause
            self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
            self._cause, self._since = cause or before, now
            return before

    def seconds(self) -> dict[str, float]:
        """Return the seconds by cause up to now."""
        self.turn_to(None)
        return dict(self._seconds)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.activity = Activity()


_thread = _Thread()


def watch(activity: Activity) -> None:
    """Record what the current thread does from now on in `activity`."""
    _thread.activity = activity


@contextlib.contextmanager
def during(cause: Cause) -> Iterator[None]:
    """Count the time inside for `cause` in the activity of the current thread; the innermost cause counts."""
    activity = _thread.activity
    before = activity.turn_to(cause)
    try:
        yield
    finally:
        activity.turn_to(before)


def sleep(seconds: float) -> None:
    """Sleep, or raise ActivityStoppedError as soon as the reader of the current thread has gone."""
    if _thread.activity.stopped.wait(seconds):
        raise ActivityStoppedError("the reader of these batches has gone")


class Prefetch(Generic[Item]):
    """Items of `source` in order, at most `depth` of them made and not yet taken.

    An error of `source` is raised by `next` at its place in the order. `close`, or leaving the `with` block, stops the
    thread and waits for it.
    """

    def __init__(
        self,
        source: Iterator[Item],
        depth: int,
        *,
        unblock: Callable[[], None] = lambda: None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread, which calls `unblock` to make `source` stop waiting when it should end.

        A waiting reader calls `while_waiting` now and then, in its own thread; `next` raises its errors.
        """
        if depth < 1:
            raise ValueError(f"depth is {depth}; use at least 1.")
        self.last_wait_seconds = 0.0
        """Time that the reader spent in `next` for the item that it took last."""
        self.last_wait_causes: dict[str, float] = {}
        """Seconds of that wait by the thread's activity."""
        self._unblock, self._while_waiting = unblock, while_waiting
        self._activity = Activity()
        self._ready: queue.Queue[tuple[str, object]] = queue.Queue(depth)
        self._thread = threading.Thread(target=self._fill, args=(source,), name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> "Prefetch[Item]":
        return self

    def __next__(self) -> Item:
        if self._activity.stopped.is_set():
            raise StopIteration
        before = self._activity.seconds()
        began = time.perf_counter()
        kind, value = self._get()
        if kind == "item":
            self.last_wait_seconds = time.perf_counter() - began
            after = self._activity.seconds()
            self.last_wait_causes = {cause: after[cause] - before.get(cause, 0.0) for cause in sorted(after)}
            return value  # type: ignore[return-value]
        self.close()
        if kind == "error":
            assert isinstance(value, BaseException)
            raise value
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and wait until it has ended; may be called twice."""
        self._activity.stopped.set()
        self._unblock()
        self._thread.join()

    def __enter__(self) -> "Prefetch[Item]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _fill(self, source: Iterator[Item]) -> None:
        watch(self._activity)
        try:
            for item in source:
                if not self._put("item", item):
                    return
            self._put("end", None)
        except BaseException as error:  # every kind belongs to the reader
            self._put("error", error)

    def _put(self, kind: str, value: object) -> bool:
        while not self._activity.stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put((kind, value), timeout=POLL_SECONDS)
                return True
        return False

    def _get(self) -> tuple[str, object]:
        called = time.monotonic()
        while True:
            try:
                return self._ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self._activity.stopped.is_set():  # closed from another thread
                    return "end", None
                if time.monotonic() - called >= CALL_BACK_SECONDS:
                    called = time.monotonic()
                    self._while_waiting()
