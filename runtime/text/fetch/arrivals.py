"""Progress of many files that workers fetch: bytes of finished files, and of the parts of the others in the store."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

import fsspec

POLL_SECONDS = 5.0
RATE_SECONDS = 60.0
"""The rate is an average over this much of the past."""


class Arrived(NamedTuple):
    num_files: int
    """Files that have arrived or failed."""
    num_bytes: int
    """Bytes here, those of unfinished files included."""
    bytes_per_second: float
    """Over the last minute; files of an earlier attempt do not count."""


class Arrivals:
    """Reports progress as files end, and every few seconds from the size of their parts.

    Args:
        parts_path: The folder of the parts of unfinished files.
        report: Called with the progress; from one thread at a time.
    """

    def __init__(self, parts_path: str, report: Callable[[Arrived], None]) -> None:
        self._parts_path = parts_path
        self._report = report
        self._num_files = 0
        self._finished_bytes = self._most_bytes = 0
        self._num_kept: int | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="arrivals", daemon=True)

    def __enter__(self) -> "Arrivals":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def count(self, num_ended: int, num_files: int) -> None:
        """Take the number of ended files; the first call gives the number that an earlier attempt fetched."""
        if self._num_kept is None:
            self._num_kept = num_ended
            self._update(0)

    def end(self, size_in_bytes: int) -> None:
        """Count one file that arrived, or failed with the size 0."""
        with self._lock:
            self._num_files += 1
            self._finished_bytes += size_in_bytes
        self._update(0)

    def _poll(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            with contextlib.suppress(Exception):  # progress is no reason to fail: files arrive all the same
                filesystem, folder = fsspec.core.url_to_fs(self._parts_path)
                filesystem.invalidate_cache()
                self._update(sum(entry["size"] for entry in filesystem.find(folder, detail=True).values()))

    def _update(self, part_bytes: int) -> None:
        with self._lock:
            if self._num_kept is None or self._num_files < self._num_kept:
                return
            # A file's parts vanish shortly before the file counts as finished.
            self._most_bytes = max(self._most_bytes, self._finished_bytes + part_bytes)
            now = time.monotonic()
            self._samples.append((now, self._most_bytes))
            while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_SECONDS:
                self._samples.popleft()
            since, before = self._samples[0]
            rate = (self._most_bytes - before) / (now - since) if now > since else 0.0
            self._report(Arrived(self._num_files, self._most_bytes, rate))
