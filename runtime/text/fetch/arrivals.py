"""Progress of files that workers fetch: bytes of finished files, and of the parts of the others in the store."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import fsspec

POLL_SECONDS = 5.0


class Arrivals:
    """Reports progress as files end, and every few seconds from the size of their parts below `parts_path`.

    `report` is called with the number of files that arrived or failed, the bytes that are here, and bytes a second in
    this attempt; from one thread at a time.
    """

    def __init__(self, parts_path: str, report: Callable[[int, int, float], None]) -> None:
        self._parts_path = parts_path
        self._report = report
        self._num_files = self._finished_bytes = self._most_bytes = 0
        self._num_kept: int | None = None
        self._start: tuple[float, int] | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def polled(self) -> Iterator["Arrivals"]:
        """Poll the parts while files are fetched."""
        thread = threading.Thread(target=self._poll, name="arrivals", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            thread.join()

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
            since, before = self._start = self._start or (now, self._most_bytes)
            rate = (self._most_bytes - before) / (now - since) if now > since else 0.0
            self._report(self._num_files, self._most_bytes, rate)
