"""Guards: a document that ends the process of its reader, or passes a limit of time or memory, is left out.

Documents are pages, records and members that are read as a whole. After a death, lines of JSON and row groups of
Parquet files are guarded, too; before it, their size limits what they cost.

Readers are partly native code, so one page can end their process, and nothing but the end of the process stops a call
that takes too long. Documents are read in the worker, at full speed, until a worker dies over them. The next attempt
reads each of them in a child process, replaced when it dies. A document is left out if it takes a child longer than the
limit, or if a fresh child dies of it, so that no document pays for memory that another one corrupted.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import fsspec

from runtime.text.extraction.extracted import EXCERPT_BYTES, Unreadable
from runtime.text.extraction.limits import Limits, memory_in_use, memory_limit, time_limit

DEADLY = "ends the process that reads it"
TOO_SLOW = "takes too long"
TOO_MUCH_MEMORY = "takes too much memory"
# Signals of faults; others come from outside, or for want of memory.
_OWN_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))


class ReaderKilledError(RuntimeError):
    """The process that read a document was ended, and not by the document."""

    is_transient = True


class _DeathError(Exception):
    """The child has died."""


Guard = Callable[..., Iterator[Any]]
"""A way to read: `guard(read, *arguments, anchor=..., name=..., data=...)` yields what `read(*arguments)` yields.

All of it must fit into memory; `read` is a module's function. `anchor` and `data` describe the document if it is left
out; errors call it `name`.
"""


def unguarded(
    read: Callable[..., Iterator[Any]], *arguments: object, anchor: str, name: str, data: bytes
) -> Iterator[Any]:
    """Read in this process without limits; see Guard."""
    return read(*arguments)


class Limited:
    """Read in this process, which ends where a document takes too long; see Guard."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._max_memory = memory_in_use() + limits.max_document_memory

    def __call__(
        self, read: Callable[..., Iterator[Any]], *arguments: object, anchor: str, name: str, data: bytes
    ) -> Iterator[Any]:
        """See Guard. The time between two pieces counts, too."""
        try:
            with time_limit(self._limits.max_document_seconds), memory_limit(self._max_memory):
                yield from read(*arguments)
        except MemoryError:
            yield _left_out(anchor, TOO_MUCH_MEMORY, f"more than {self._limits.max_document_memory:,} bytes", data)


def _left_out(anchor: str, reason: str, detail: str, data: bytes) -> Unreadable:
    excerpt = data[:EXCERPT_BYTES].decode(errors="backslashreplace")
    return Unreadable(anchor, reason, f"{detail}, {len(data):,} bytes", excerpt)


class Guarded:
    """Read each document in a child process; see Guard."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._child: _Child | None = None

    def close(self) -> None:
        if self._child is not None:
            self._child.end(kills=True)

    def __call__(
        self, read: Callable[..., Iterator[Any]], *arguments: object, anchor: str, name: str, data: bytes
    ) -> Iterator[Any]:
        while True:
            if self._child is None:
                self._child = _Child(self._limits)
            was_fresh = self._child.num_read == 0
            try:
                yield from self._child.read(read, arguments, anchor=anchor, name=name, data=data)
                return
            except _DeathError:
                status, self._child = self._child.end(), None
            reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            if -status == signal.SIGPROF:
                limit = f"more than {self._limits.max_document_seconds:g} s of processor time"
                yield _left_out(anchor, TOO_SLOW, limit, data)
                return
            if -status not in _OWN_FAULTS:
                raise ReaderKilledError(
                    f"{name}: the process that read it was ended ({reason}), from outside or for want of memory. Run "
                    "the same command again; if the error returns, give the step more memory."
                )
            if was_fresh:
                yield _left_out(anchor, DEADLY, reason, data)
                return


@contextlib.contextmanager
def guard_after_death(mark: str, limits: Limits) -> Iterator[Guard]:
    """Yield a `Limited` guard, or a `Guarded` one if an earlier reader of these documents died.

    `mark` is a path of these documents' own that survives kills; a file lies there while they are read.
    """
    filesystem, path = fsspec.core.url_to_fs(mark)
    filesystem.invalidate_cache()
    has_died = filesystem.exists(path)
    if not has_died:
        with fsspec.open(mark, "wb", auto_mkdir=True):
            pass
    is_read = False
    try:
        if has_died:
            with contextlib.closing(Guarded(limits)) as guard:
                yield guard
        else:
            yield Limited(limits)
        is_read = True
    finally:
        # An error is no death; but a mark of an earlier death outlives an error of this attempt.
        if is_read or not has_died:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm(path)


class _Child:
    """A process that reads documents and sends back what is in them."""

    def __init__(self, limits: Limits) -> None:
        self.num_read = 0
        self._limits = limits
        self._ours, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )

    def read(self, read: Callable[..., Iterator[Any]], arguments: tuple[object, ...], **document: Any) -> Iterator[Any]:
        """Yield what `read` yields, and raise what it raises, or _DeathError if the process dies."""
        try:
            self._ours.send((self._limits, read, arguments, document))
            found, error = self._ours.recv()
        except (EOFError, ConnectionError) as death:
            raise _DeathError from death
        self.num_read += 1
        yield from found
        if error is not None:
            raise error

    def end(self, *, kills: bool = False) -> int:
        """Wait for the end of the process and return its status as `subprocess` has it."""
        if kills:
            self._process.kill()
        self._ours.close()
        return self._process.wait()


def serve(descriptor: int) -> None:
    """Read documents for the parent until it closes the connection."""
    with Connection(descriptor) as connection:
        while True:
            try:
                limits, read, arguments, document = connection.recv()
            except EOFError:
                return
            found: list[Any] = []
            failure = None
            try:
                found.extend(Limited(limits)(read, *arguments, **document))  # pieces before an error count
            except Exception as error:  # the parent raises it
                failure = error
            try:
                if failure is not None:
                    made, its_arguments, *_ = cast(tuple[Any, ...], failure.__reduce__())
                    made(*its_arguments)  # the parent has to build it again
                connection.send((found, failure))
            except Exception:
                if failure is None:
                    raise
                connection.send((found, RuntimeError(f"{type(failure).__qualname__}: {failure}")))
