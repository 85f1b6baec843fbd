"""Input files: the committed files that the steps of this process read, each checked when it is first opened.

A file counts as checked as long as its size and time of change stay the same, so a worker reads it for its checksum
once. Python announces each opening of a local file to an audit hook; on `gs://` and `s3://` fsspec's classes announce
it. A reader that checks the bytes itself raises the audit event `CHECKED_BY_READER` with the path before it opens one.
"""

import contextlib
import dataclasses
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.graph.inputs import Input
from marin_dag.ledger.damage import DamagedInputError, compare
from marin_dag.ledger.records import FileEntry, Records
from marin_dag.store.prefix import open_store
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store
from marin_dag.store.watched_reads import watch_reads
from marin_dag.values.walk import references_in

CHECKED_BY_READER = "checked_by_reader"
PATH_IN_TEXT = re.compile(r"[^\s'\"(),;]+")
Listener = Callable[[str, tuple[Any, ...]], None]
AUDIT_EVENTS = frozenset({"open", CHECKED_BY_READER, "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"})
"""Audit events that listeners get."""


class InputOutput(NamedTuple):
    """An output that a step reads: key of its record, name of its step, folder relative to the prefix."""

    key: str
    name: str
    folder: str


def inputs_in(config: object) -> list[Input[Any]]:
    return [item for _, item in references_in(config) if isinstance(item, Input)]


@dataclasses.dataclass(eq=False)
class _Watched:
    """An output while an attempt or shard reads it."""

    store: Store
    output: InputOutput
    damage: dict[str, str] = dataclasses.field(default_factory=dict)
    """The damage of each damaged file, by its path in the output."""

    @property
    def files(self) -> dict[str, FileEntry]:
        """The manifest by path; read when a first file of the output is opened."""
        return _manifest(self.store.prefix, self.output.key, self.output.folder)

    def check(self, path: str) -> None:
        """Compare a file with the manifest, unless it was compared and has not changed since; note what differs."""
        entry = self.files.get(path)
        if entry is None:
            return
        where = f"{self.output.folder}/{path}"
        url = self.store.url(where)
        signature = _signature(url)
        if _checked.get(url) == (entry, signature):
            return
        try:
            found = compare(entry, *patiently(lambda: self.store.checksum(where)))
        except FileNotFoundError:  # the reader gets this error itself
            return
        if found is None:
            _checked[url] = entry, signature
        else:
            self.damage[path] = f"{url} {found.what}"

    def error(self) -> DamagedInputError:
        name, paths = self.output.name, sorted(self.damage)
        more = f" (and {len(paths) - 1} more files)" if len(paths) > 1 else ""
        return DamagedInputError(
            f"the input {name} is damaged: {self.damage[paths[0]]}{more}. To make it again, run the same command with  "
            f"--force {name} --until {name}",
            steps_to_force=[name],
        )


class InputFiles:
    """The inputs of one attempt or shard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.watched: dict[str, _Watched] = {}
        """Files by URL; on a local disk also by the path without links."""

    @contextlib.contextmanager
    def watching(self) -> Iterator["InputFiles"]:
        """Check the files of the added outputs when they are opened, until the end of the block.

        Raises:
            DamagedInputError: a damaged file was opened, whatever the block did about the error, or an error of the
                block names files that are damaged: their reader has checksums of its own.
        """
        listen(_on_audit_event)
        if "://" in self._store.prefix:
            watch_reads(self._store.prefix.partition("://")[0], check_before_reading)
        _active.append(self)
        try:
            yield self
            self.check()
        except DamagedInputError:
            raise
        except Exception as error:
            for found in filter(None, (_find(word.rstrip(".:")) for word in PATH_IN_TEXT.findall(str(error)))):
                watched, path = found
                for inner in watched.files:
                    if inner == path or inner.startswith(f"{path}/"):
                        watched.check(inner)
            self.check(error)
            raise
        finally:
            _active.remove(self)

    def add(self, outputs: Iterable[InputOutput]) -> None:
        for output in outputs:
            url = self._store.url(output.folder)
            watched = _Watched(self._store, output)
            for spelling in {url, os.path.realpath(url)} if url.startswith("/") else {url}:
                self.watched.setdefault(spelling, watched)

    def add_inputs(self, inputs: Iterable[Input[Any]]) -> None:
        for item in inputs:
            path = item.path.removesuffix(f"/{item.subpath}") if item.subpath else item.path
            self.add([InputOutput(item.record_key, item.name, path.removeprefix(f"{self._store.prefix}/"))])

    @property
    def outputs(self) -> tuple[InputOutput, ...]:
        """The added outputs, for the shards of the attempt."""
        return tuple(dict.fromkeys(watched.output for watched in self.watched.values()))

    def check(self, cause: Exception | None = None) -> None:
        """Raise DamagedInputError if a damaged file was opened; the step function may have caught the error."""
        for watched in self.watched.values():
            if watched.damage:
                raise watched.error() from cause


class _OfThread(threading.local):
    is_checking = False
    checked_by_reader = ""
    """File that the thread opens next and whose bytes its reader checks."""


_lock = threading.Lock()
_of_thread = _OfThread()
_listeners: tuple[Listener, ...] = ()
_active: list[InputFiles] = []
"""The inputs of the attempts and shards that this process runs now."""
_checked: dict[str, tuple[FileEntry, tuple[int, ...]]] = {}
"""Files whose bytes were as recorded, with the signature that they had then."""


def listen(listener: Listener) -> None:
    """Call `listener` for each audit event in `AUDIT_EVENTS` from now on; a hook cannot be taken out again."""
    global _listeners
    with _lock:
        if not _listeners:
            sys.addaudithook(lambda event, arguments: _on_event(event, arguments) if event in AUDIT_EVENTS else None)
        if listener not in _listeners:
            _listeners = (*_listeners, listener)


def absolute(path: str) -> str:
    """Return a path from the root, with its links: this is called at each opening."""
    return os.path.abspath(path)  # noqa: PTH100 -- `resolve` would follow links


def path_read(arguments: tuple[Any, ...]) -> str | None:
    """Return the path of a file that an event `open` opens to be read only."""
    path, mode, flags = arguments
    is_reading = ("r" in mode and "+" not in mode) if mode else ((flags or 0) & os.O_ACCMODE) == os.O_RDONLY
    return absolute(os.fsdecode(path)) if is_reading and not isinstance(path, int) else None


def check_before_reading(url: str) -> None:
    """Raise DamagedInputError if `url` is a file of a watched output and differs from its record."""
    if not _active or _of_thread.is_checking:
        return
    if url == _of_thread.checked_by_reader:
        _of_thread.checked_by_reader = ""
        return
    if (found := _find(url)) is None:
        return
    watched, path = found
    _of_thread.is_checking = True
    try:
        watched.check(path)
    finally:
        _of_thread.is_checking = False
    if path in watched.damage:
        raise watched.error()


def _find(url: str) -> tuple[_Watched, str] | None:
    """Return the watched output that `url` lies in, and the path in it."""
    end = url.rfind("/")
    while end > 0:
        for files in _active[::-1]:
            if (watched := files.watched.get(url[:end])) is not None:
                return watched, url[end + 1 :]
        end = url.rfind("/", 0, end)
    return None


@functools.lru_cache(maxsize=64)
def _manifest(prefix: str, key: str, folder: str) -> dict[str, FileEntry]:
    record = patiently(lambda: Records(open_store(prefix)).find(key))
    return {} if record is None else {entry.path: entry for entry in record.manifest}


def _signature(url: str) -> tuple[int, ...]:
    if not url.startswith("/"):
        return ()  # an object never changes under its generation; a new one has another record
    try:
        status = Path(url).stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    for listener in _listeners:
        listener(event, arguments)


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == CHECKED_BY_READER:
        _of_thread.checked_by_reader = absolute(arguments[0])
    elif event == "open" and _active and (path := path_read(arguments)) is not None:
        check_before_reading(path)
