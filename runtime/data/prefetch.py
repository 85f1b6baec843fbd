"""Prefetch: an iterator that a thread keeps ahead of its reader; it measures how long the reader waits, and why."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from runtime.data.activity import Activity, watch

Item = TypeVar("Item")

POLL_SECONDS = 0.1
"""How often a waiting thread checks whether it should stop."""
CALL_BACK_SECONDS = 2.0
"""How often a waiting reader calls `while_waiting`."""


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
        self._unblock = unblock
        self._activity = Activity()
        self._while_waiting = while_waiting
        self._stop = threading.Event()
        self._ready: queue.Queue[tuple[str, object]] = queue.Queue(depth)
        self._thread = threading.Thread(target=self._fill, args=(source,), name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> "Prefetch[Item]":
        return self

    def __next__(self) -> Item:
        if self._stop.is_set():
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
        self._stop.set()
        self._activity.stop()
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
        while not self._stop.is_set():
            try:
                self._ready.put((kind, value), timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def _get(self) -> tuple[str, object]:
        polls = 0
        while True:
            try:
                return self._ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                polls += 1
                if self._stop.is_set():  # closed from another thread
                    return "end", None
                if polls * POLL_SECONDS >= CALL_BACK_SECONDS:
                    polls = 0
                    self._while_waiting()
