"""Event log: what happened to one attempt of a phase and when, one JSON object per line.

It is in the work folder beside the checkpoints and in no output: wall times would make equal runs differ. Each host of
an attempt writes a log, and hosts in step write the same events. A log in a bucket is in parts: `attempt.jsonl`,
`attempt.part0002.jsonl` and so on.
"""

import json
import logging
import re
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec

VALIDATION = "validation"
"""The event of one measurement of held-out text."""
REMOTE_FLUSH_SECONDS = 30.0
"""An object in a bucket cannot grow: a thread rewrites it, no more often than this."""
REMOTE_PART_BYTES = 2**20
"""Size after which a log continues in another object; else a month of lines would be rewritten each time."""
CLOSE_PAUSES_SECONDS = (1.0, 5.0, 0.0)
"""Pause after each try to write the last lines; then they are lost."""

_PART = re.compile(r"(?:\.part(\d+))?\.jsonl$")
_OTHER_HOST = re.compile(r"\.host[1-9]\d*\.")
_OTHER_HOST_OR_PART = re.compile(r"\.(host[1-9]\d*|part\d+)\.jsonl$")

logger = logging.getLogger(__name__)


def log_name(attempt: str, host_index: int) -> str:
    """Return the name of a host's log, or of its first part."""
    return f"{attempt}.jsonl" if host_index == 0 else f"{attempt}.host{host_index}.jsonl"


def is_of_first_host(path: str) -> bool:
    """Return whether `path` is the first part of the first host's log; there is one for each attempt."""
    return _OTHER_HOST_OR_PART.search(path) is None


def is_part_of_first_host(path: str) -> bool:
    return path.endswith(".jsonl") and _OTHER_HOST.search(path) is None


def _next_part(path: str) -> str:
    (number,) = _PART.findall(path)
    return _PART.sub(f".part{int(number or 1) + 1:04d}.jsonl", path)


class EventLog:
    """Appends events; thread-safe. A line is on the disk before `write` returns, in a bucket soon after.

    A full or unreachable store fails no run: the failure is logged, and the lines are written as soon as they can be.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._began = time.monotonic()
        self._log = _RemoteLines(url) if "://" in url else _LocalLines(Path(url))

    def write(self, kind: str, **fields: Any) -> None:
        """Append `{"event": kind, "time": ..., "elapsed_seconds": ..., **fields}`."""
        event = {
            "event": kind,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "elapsed_seconds": round(time.monotonic() - self._began, 3),
            **fields,
        }
        self._log.add(json.dumps(event, default=str) + "\n")

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _LocalLines:
    """A local file, appended to."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = str(path)
        self._file = path.open("ab", buffering=0)
        self._unwritten = bytearray()
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        with self._lock:
            self._unwritten += line.encode()
            self._write()

    def close(self) -> None:
        with self._lock:
            self._write()
            try:
                self._file.close()
            except OSError as error:  # a file server may report only now that it is full
                _warn(self._path, error)

    def _write(self) -> None:
        try:
            while self._unwritten:  # a disk that fills up takes a part of a line, and the rest once there is space
                del self._unwritten[: self._file.write(self._unwritten)]
        except OSError as error:
            _warn(self._path, error)


class _RemoteLines:
    """Objects in a bucket, the last of which is rewritten while it grows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._num_written = 0
        """Lines of `_lines` that are in the object."""
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write_repeatedly, name="event log", daemon=True)
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
            if self._write():
                return
            time.sleep(pause_seconds)

    def _write_repeatedly(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or len(self._lines) > self._num_written)
                if self._is_closed:
                    return
            self._write()
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, REMOTE_FLUSH_SECONDS)

    def _write(self) -> bool:
        with self._changed:
            lines = list(self._lines)
        if len(lines) == self._num_written:
            return True
        text = "".join(lines)
        try:
            with fsspec.open(self._url, "w", encoding="utf-8") as file:
                file.write(text)
        except Exception as error:  # clients of buckets raise what they like; the log must not change a run's end
            _warn(self._url, error)
            return False
        self._num_written = len(lines)
        if len(text) >= REMOTE_PART_BYTES:
            with self._changed:
                del self._lines[: len(lines)]
            self._url, self._num_written = _next_part(self._url), 0
        return True


def read_events(path: str) -> list[dict[str, Any]]:
    """Return the events of one attempt, all parts of its log, without a last line that a kill cut short."""
    lines, part = _whole_lines(path), path
    while True:
        part = _next_part(part)
        try:
            lines += _whole_lines(part)
        except FileNotFoundError:
            return [json.loads(line) for line in lines]


def read_beginning(path: str) -> list[dict[str, Any]]:
    """Return the events of one attempt up to `begin`, before its first update; read no further."""
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


def _warn(place: str, error: Exception) -> None:
    logger.warning("the event log %s could not be written (%s: %s)", place, type(error).__name__, error)
