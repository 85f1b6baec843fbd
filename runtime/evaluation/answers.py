"""Answers: results of requests that survive a kill, so that no request is computed twice.

Answers lie in JSON lines, a file for each flush, since an object in a bucket cannot grow. A file that a kill left torn
counts up to its last whole line. Hosts of a gang know the same answers, and host 0 writes them.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

import fsspec
import jax

from runtime.parallel.hosts import bytes_of_first_host

FLUSH_SECONDS = 10.0
"""A kill loses at most the answers of this time."""


class Answers:
    """Known answers by key, in a folder or only in memory.

    Args:
        folder: a folder or URL; None keeps nothing.
        writer: name of this attempt, which no other has.
        flush_seconds: shortest time between two files.
    """

    def __init__(self, folder: str | None = None, writer: str = "", *, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._folder, self._writer, self._flush_seconds = folder, writer, flush_seconds
        self._known: dict[str, Any] = {}
        self._unwritten: list[str] = []
        self._num_files, self._flushed_at = 0, time.monotonic()
        if folder is not None:
            known = _read(folder) if jax.process_index() == 0 else {}
            self._known = json.loads(bytes_of_first_host(json.dumps(known).encode()))

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def take(self, keys: Sequence[str]) -> list[Any]:
        """Return the answers of all requests of a kind, and drop them from memory."""
        found = [self._known[key] for key in keys]
        for key in keys:
            self._known.pop(key, None)
        return found

    def keep(self, key: str, answer: Any) -> None:
        """Note an answer, a JSON value."""
        self._known[key] = answer
        if self._folder is not None and jax.process_index() == 0:
            self._unwritten.append(json.dumps([key, answer]) + "\n")

    def flush(self, *, now: bool = False) -> None:
        """Write what is new, if the last file is old enough or `now`."""
        if not self._unwritten or not (now or time.monotonic() - self._flushed_at >= self._flush_seconds):
            return
        path = f"{self._folder}/{self._writer}-{self._num_files:06d}.jsonl"
        with fsspec.open(path, "wb", auto_mkdir=True) as file:
            file.write("".join(self._unwritten).encode())
        self._unwritten.clear()
        self._num_files, self._flushed_at = self._num_files + 1, time.monotonic()


def _read(folder: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    filesystem, path = fsspec.core.url_to_fs(folder)
    for name in sorted(filesystem.find(path)):
        for line in filesystem.cat_file(name).decode(errors="replace").splitlines():
            try:
                key, answer = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            known[key] = answer
    return known


def answer_key(*parts: Any) -> str:
    """Return the key of a request, from JSON values that determine its answer."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()[:32]
