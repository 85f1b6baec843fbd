"""Guards: a document that its reader dies of is left out, and neither the worker nor the other documents with it.

Readers are native code in part, and one page can end the process it is read in. Documents are therefore read here, at
full speed, as long as nobody has died over them; whose worker did die is read once more, each document in a child
process that is replaced when it dies. A document is left out if, and only if, a process that has read nothing else dies
of it: what another page broke in memory is not laid at its door, and the documents that come out do not depend on who
died before.
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
from types import TracebackType
from typing import Any, Protocol, cast

import fsspec

from runtime.text.extraction.extracted import Extracted, Unreadable

DEADLY = "ends the process that reads it"
_EXCERPT_BYTES = 200
# What the machine or the process does to itself; any other signal comes from outside or for want of memory.
_OWN_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))


class ReaderKilledError(RuntimeError):
    """The process that read a document was ended, and not by the document."""

    is_transient = True


class _DeathError(Exception):
    """The child has died; no error of a reader is one."""


class Guard(Protocol):
    """How a document is read."""

    def __call__(
        self, read: Callable[..., Extracted], *arguments: object, anchor: str, name: str, data: bytes
    ) -> Extracted:
        """What `read(*arguments)` yields, of the document at `anchor` in its file that is made of `data`.

        `read` is a function of a module, and it yields no more than fits into memory. Errors call the document `name`.
        """


def unguarded(read: Callable[..., Extracted], *arguments: object, anchor: str, name: str, data: bytes) -> Extracted:
    """See Guard. Read here."""
    return read(*arguments)


class Guarded:
    """See Guard. Each is read in a child; entered for as long as it is used."""

    def __init__(self) -> None:
        self._child: _Child | None = None

    def __enter__(self) -> "Guarded":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.kill()

    def __call__(
        self, read: Callable[..., Extracted], *arguments: object, anchor: str, name: str, data: bytes
    ) -> Extracted:
        while True:
            if self._child is None:
                self._child = _Child()
            was_fresh = self._child.num_read == 0
            try:
                yield from self._child.read(read, arguments)
                return
            except _DeathError:
                status, self._child = self._child.status(), None
            if -status not in _OWN_FAULTS:
                raise ReaderKilledError(
                    f"{name}: the process that read it was ended ({_told(status)}), from outside or "
                    "for want of memory. Run the same command again; if it comes again, give the step more memory."
                )
            if was_fresh:
                excerpt = data[:_EXCERPT_BYTES].decode(errors="backslashreplace")
                yield Unreadable(anchor, DEADLY, f"{_told(status)}, {len(data):,} bytes", excerpt)
                return


@contextlib.contextmanager
def guard_after_death(mark: str) -> Iterator[Guard]:
    """The plain way of reading, or, if whoever read these documents before died over them, the guarded one.

    Args:
        mark: A path of their own in a folder that survives kills, where a file lies while they are being read.
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
            with Guarded() as guard:
                yield guard
        else:
            yield unguarded
        is_read = True
    finally:
        # An error is no death; but what somebody died over is still there when an error ends the next attempt.
        if is_read or not has_died:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm(path)


class _Child:
    """One process that reads documents and says what is in them."""

    def __init__(self) -> None:
        self.num_read = 0
        self._ours, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )

    def read(self, read: Callable[..., Extracted], arguments: tuple[object, ...]) -> Extracted:
        """Raises _DeathError if the process dies, and what `read` raises."""
        try:
            self._ours.send((read, arguments))
            found, error = self._ours.recv()
        except (EOFError, ConnectionError) as death:
            raise _DeathError from death
        self.num_read += 1
        yield from found
        if error is not None:
            raise error

    def status(self) -> int:
        """How it ended, as `subprocess` says it."""
        self._ours.close()
        return self._process.wait()

    def kill(self) -> None:
        """Ends it, in the middle of a document too."""
        self._process.kill()
        self.status()


def serve(descriptor: int) -> None:
    """A child's life: reads what it is sent until nobody sends any more."""
    with Connection(descriptor) as connection:
        while True:
            try:
                read, arguments = connection.recv()
            except EOFError:
                return
            found = []  # what came before an error counts
            failure = None
            try:
                for piece in read(*arguments):
                    found.append(piece)
            except Exception as error:  # raised again by whoever asked
                failure = _sendable(error)
            try:
                connection.send((found, failure))
            except Exception:
                if failure is None:
                    raise
                connection.send((found, _in_words(failure)))  # it holds what cannot be sent, such as an open file


def _sendable(error: Exception) -> Exception:
    """The error, or one with its words where it cannot be made again in another process."""
    made, arguments, *_ = cast(tuple[Any, ...], error.__reduce__())
    try:
        made(*arguments)
    except Exception:  # whatever its own class makes of being copied
        return _in_words(error)
    return error


def _in_words(error: Exception) -> Exception:
    return RuntimeError(f"{type(error).__qualname__}: {error}")


def _told(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
