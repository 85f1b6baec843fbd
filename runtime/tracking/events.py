"""Event log: what happened to one attempt of a phase and when, one JSON object a line.

It lies in the work folder beside the checkpoints, one file an attempt, and never in a committed output: wall
times and host names would make equal runs differ.
"""

import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import fsspec

VALIDATION = "validation"
"""The event of one measurement of held-out text."""
REMOTE_FLUSH_SECONDS = 30.0
"""An object in a bucket cannot grow: it is written anew, no more often than this."""


class EventLog:
    """Appends events; thread-safe. Each line is on the disk before `write` returns, in a bucket soon after."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._is_remote = "://" in url
        self._lines: list[str] = []
        self._flushed = float("-inf")
        if not self._is_remote:
            path = Path(url)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, **fields: Any) -> None:
        """Adds `{"event": kind, "time": ..., "elapsed_seconds": ..., **fields}`."""
        event = {
            "event": kind,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "elapsed_seconds": round(time.monotonic() - self._began, 3),
            **fields,
        }
        line = json.dumps(event, default=str)
        with self._lock:
            if not self._is_remote:
                self._file.write(line + "\n")
                return
            self._lines.append(line)
            if time.monotonic() - self._flushed >= REMOTE_FLUSH_SECONDS:
                self._flush()

    def _flush(self) -> None:
        with fsspec.open(self.url, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in self._lines))
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Puts what is left where it belongs."""
        with self._lock:
            if self._is_remote:
                self._flush()
            else:
                self._file.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: str) -> list[dict[str, Any]]:
    """The events of one attempt; a last line that a kill cut short is left out."""
    with fsspec.open(path, "r", encoding="utf-8") as file:
        lines = file.read().split("\n")
    return [json.loads(line) for line in lines[:-1]]
