"""Arrivals: bytes and files of many that are fetched at once, by workers that may be on other machines.

What workers and whoever waits for them share is the store. A worker notes there how much of its file is here, now and
then and in one small object a file; the one who waits reads the notes. A note outlives a kill, so what was here before
counts from the first look on. Its name and size never change: the engine must not take it for an attempt that got
further than the one before.
"""

import contextlib
import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

import fsspec

from runtime.text.fetch.failures import file_key

NOTE_SECONDS = 5.0
LOOK_SECONDS = 5.0
RATE_SECONDS = 60.0
"""The rate is over so much of the past."""
_NOTE = struct.Struct("<qq")
_UNKNOWN = -1


class ArrivalNote:
    """What the worker of one file tells; called with bytes here and bytes in all, or None where nobody says."""

    def __init__(self, folder: str, address: str) -> None:
        self._path = f"{folder}/{file_key(address)}"
        self._next = 0.0

    def __call__(self, num_bytes: int, size_in_bytes: int | None) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + NOTE_SECONDS
        with fsspec.open(self._path, "wb", auto_mkdir=True) as file:
            file.write(_NOTE.pack(num_bytes, _UNKNOWN if size_in_bytes is None else size_in_bytes))

    def forget(self) -> None:
        """The file is here: whoever waits for it is told so otherwise."""
        filesystem, path = fsspec.core.url_to_fs(self._path)
        with contextlib.suppress(FileNotFoundError):
            filesystem.rm(path)


class Wanted(NamedTuple):
    """One of the files."""

    address: str
    size_in_bytes: int | None
    """None where it is not known before the file is asked for."""


class Arrived(NamedTuple):
    """How far all of them are."""

    num_files: int
    """Files that have ended, in whatever way."""
    num_bytes: int
    """Those here, of unfinished files too."""
    known_bytes: int
    """Sizes of the files whose size is known."""
    num_unknown: int
    """Files of which nobody has said how large they are."""
    bytes_per_second: float
    """In the last minute, of what this attempt fetched."""


class Arrivals:
    """What is here of many files; tells it as files end, and in between as bytes come.

    Args:
        folder: Where the workers leave their notes.
        wanted: The files, in the order by which they are counted.
        tell: Called with how far they are, from this thread or another, never from two at once.
        log: Takes a note that the notes cannot be read; the files come all the same.
    """

    def __init__(
        self, folder: str, wanted: Sequence[Wanted], tell: Callable[[Arrived], None], log: logging.Logger
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._log = log
        self._indices: dict[str, list[int]] = {}
        for index, file in enumerate(wanted):
            self._indices.setdefault(file_key(file.address), []).append(index)
        self._sizes = [file.size_in_bytes for file in wanted]
        self._here = [0] * len(wanted)
        # Kept beside the lists: of a hundred thousand files each would be a hundred thousand numbers to add.
        self._known_bytes = sum(size for size in self._sizes if size is not None)
        self._num_unknown = self._sizes.count(None)
        self._num_bytes = 0
        self._ended: set[int] = set()
        self._num_kept: int | None = None
        self._failure: Exception | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()
        self._is_readable = True
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._watch_notes, name="arrivals", daemon=True)

    def __enter__(self) -> "Arrivals":
        self._look_if_readable()
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._watch.join()
        if error is None:
            self._raise_failure()

    def count(self, num_ended: int, num_files: int) -> None:
        """So many have ended; told first of those that an earlier attempt fetched, before `end` is told of each."""
        if self._num_kept is None:
            with self._lock:
                self._num_kept = num_ended
                self._tell_if_counted()

    def end(self, index: int, size_in_bytes: int | None) -> None:
        """One has ended: it is here, or it is not, and what is kept of it is."""
        self._raise_failure()
        with self._lock:
            self._ended.add(index)
            if size_in_bytes is not None:
                self._note(index, size_in_bytes, size_in_bytes)
            self._tell_if_counted()

    def _watch_notes(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self._look_if_readable()
            try:
                with self._lock:
                    self._tell_if_counted()
            except Exception as error:  # for the thread that waits for the files
                self._failure = error
                return

    def _look_if_readable(self) -> None:
        try:
            self._look()
            self._is_readable = True
        except Exception as error:  # stores have no family of errors, and the files come all the same
            if self._is_readable:
                self._log.warning("no progress within files is told: %s cannot be read: %s", self._folder, error)
            self._is_readable = False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _look(self) -> None:
        filesystem, folder = fsspec.core.url_to_fs(self._folder)
        filesystem.invalidate_cache()
        for path in filesystem.find(folder):
            indices = self._indices.get(path.rpartition("/")[2], [])
            if all(index in self._ended for index in indices):
                continue
            try:
                note = filesystem.cat_file(path)
            except FileNotFoundError:  # its file has come meanwhile
                continue
            if len(note) == _NOTE.size:  # else it is just being written
                num_bytes, size = _NOTE.unpack(note)
                with self._lock:
                    for index in indices:
                        if index not in self._ended:
                            self._note(index, num_bytes, None if size == _UNKNOWN else size)

    def _note(self, index: int, num_bytes: int, size_in_bytes: int | None) -> None:
        self._num_bytes += num_bytes - self._here[index]
        self._here[index] = num_bytes
        if size_in_bytes is not None:
            known = self._sizes[index]
            self._num_unknown -= known is None
            self._known_bytes += size_in_bytes - (known or 0)
            self._sizes[index] = size_in_bytes

    def _tell_if_counted(self) -> None:
        # What was fetched before is here at once, and is not what the network does now.
        if self._num_kept is not None and len(self._ended) >= self._num_kept:
            self._tell(self._arrived(time.monotonic()))

    def _arrived(self, now: float) -> Arrived:
        self._samples.append((now, self._num_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_SECONDS:
            self._samples.popleft()
        since, before = self._samples[0]
        rate = max(0.0, (self._num_bytes - before) / (now - since)) if now > since else 0.0
        return Arrived(len(self._ended), self._num_bytes, self._known_bytes, self._num_unknown, rate)
