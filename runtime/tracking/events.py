"""Event log: what happened to one attempt of a phase and when, one JSON object a line.

It lies in the work folder beside the checkpoints, one file an attempt and host (in a bucket several), and never in a
committed output: wall times and host names would make equal runs differ.
"""

import json
import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import fsspec

from runtime.tracking.log_names import next_part

VALIDATION = "validation"
"""The event of one measurement of held-out text."""
REMOTE_FLUSH_SECONDS = 30.0
"""An object in a bucket cannot grow: it is written anew, no more often than this, by a thread."""
REMOTE_PART_BYTES = 2**20
"""Once it is longer, what comes after goes to another: else a month of lines would be written anew each time."""
CLOSE_PAUSES_SECONDS = (1.0, 5.0, 0.0)
"""After each try to write the last lines of a log; then they are lost."""

logger = logging.getLogger(__name__)


class EventLog:
    """Appends events; thread-safe. Each line is on the disk before `write` returns, in a bucket soon after.

    A disk that is full or away, or a bucket, fails no run: that is logged, and the lines are written when they can be.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._began = time.monotonic()
        self._log = _RemoteLines(url) if "://" in url else _LocalLines(Path(url))

    def write(self, kind: str, **fields: Any) -> None:
        """Adds `{"event": kind, "time": ..., "elapsed_seconds": ..., **fields}`."""
        event = {
            "event": kind,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "elapsed_seconds": round(time.monotonic() - self._began, 3),
            **fields,
        }
        self._log.add(json.dumps(event, default=str) + "\n")

    def close(self) -> None:
        """Puts what is left where it belongs."""
        self._log.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _LocalLines:
    """A file that grows."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._unwritten = bytearray()
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        with self._lock:
            self._unwritten += line.encode()
            self._write("waits")

    def close(self) -> None:
        with self._lock:
            self._write("is not whole")
            try:
                self._file.close()
            except OSError as error:  # a file server may say only now that it is full
                self._warn("is not whole", error)

    def _write(self, without: str) -> None:
        try:
            while self._unwritten:  # a disk that fills up takes a part of a line, and the rest once there is space
                del self._unwritten[: self._file.write(self._unwritten)]
        except OSError as error:
            self._warn(without, error)

    def _warn(self, what: str, error: OSError) -> None:
        logger.warning("the event log %s %s (%s: %s)", self._path, what, type(error).__name__, error)


class _RemoteLines:
    """Objects one after the other, the last of which is written anew while it grows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._num_written = 0
        """Of these lines, those that are in the object."""
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write_now_and_then, name="writes the event log", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        for pause_seconds in CLOSE_PAUSES_SECONDS:
            try:
                self._write()
            except Exception as error:  # the run has ended, well or not; its log must not change that
                logger.warning("the event log %s is not whole (%s: %s)", self._url, type(error).__name__, error)
                time.sleep(pause_seconds)
            else:
                return

    def _write_now_and_then(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or len(self._lines) > self._num_written)
                if self._is_closed:
                    return
            try:
                self._write()
            except Exception as error:  # of any bucket's client; it is tried again, at the latest by `close`
                logger.warning("the event log %s waits (%s: %s)", self._url, type(error).__name__, error)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, REMOTE_FLUSH_SECONDS)

    def _write(self) -> None:
        with self._changed:
            lines = list(self._lines)
        if len(lines) == self._num_written:
            return
        text = "".join(lines)
        with fsspec.open(self._url, "w", encoding="utf-8") as file:
            file.write(text)
        self._num_written = len(lines)
        if len(text) >= REMOTE_PART_BYTES:
            with self._changed:
                del self._lines[: len(lines)]
            self._url, self._num_written = next_part(self._url), 0


def read_events(path: str) -> list[dict[str, Any]]:
    """The events of one attempt, all parts of its log; a last line that a kill cut short is left out."""
    lines, part = _whole_lines(path), path
    while True:
        part = next_part(part)
        try:
            lines += _whole_lines(part)
        except FileNotFoundError:
            return [json.loads(line) for line in lines]


def read_beginning(path: str) -> list[dict[str, Any]]:
    """The events of one attempt up to `begin`, which comes before its first update; the rest of its log is not read."""
    found: list[dict[str, Any]] = []
    with fsspec.open(path, "r", encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n") or (found and found[-1]["event"] == "begin"):
                break
            found.append(json.loads(line))
    return found


def _whole_lines(path: str) -> list[str]:
    with fsspec.open(path, "r", encoding="utf-8") as file:
        return file.read().split("\n")[:-1]
