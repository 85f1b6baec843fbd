"""Store: everything a pipeline keeps, below one prefix; a local folder, `gs://` and `s3://` behave alike.

The one strong need is `create`: of all who try to create a path, exactly one succeeds, and nobody ever reads half of
it. On a local disk that is an exclusive hard link, on Cloud Storage `ifGenerationMatch=0`, on S3
`If-None-Match: *`. fsspec's generic `mode="create"` looks like it and is not: it asks whether the path exists, then
writes.
"""

import contextlib
import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.store.retry import TENSORSTORE_OS_ERROR, TRANSIENT_NUMBERS

CHECKSUM_BLOCK_IN_BYTES = 1 << 20
LIMITS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write that met a limit of the machine."""
TENSORSTORE_PATH = re.compile(r'"(.+?)"')


class StoreError(UserError):
    """The store refused or could not be reached. `is_transient` says whether asking again may help."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient

    def __reduce__(self) -> tuple[Any, ...]:  # keeps the flag when a worker process sends the error home
        return _rebuild_store_error, (str(self), self.is_transient)


def _rebuild_store_error(message: str, is_transient: bool) -> StoreError:
    return StoreError(message, is_transient=is_transient)


class Entry(NamedTuple):
    """One object of a listing. `updated` is the store's own clock, in seconds since 1970."""

    path: str
    size_in_bytes: int
    updated: float


class ExplainedFile:
    """A file of a store in the cloud: its errors are the store's, each with its cure."""

    def __init__(self, file: IO[bytes], explained: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._file = file
        self._explained = explained

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; all that are left for -1."""
        with self._explained():
            return self._file.read(size)

    def write(self, data: bytes) -> int:
        """Takes all of `data`; some of it may be sent later, by `close` at the latest."""
        with self._explained():
            return self._file.write(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """As a file has it."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As a file has it."""
        return self._file.tell()

    def close(self) -> None:
        """A file that was written exists from now on."""
        with self._explained():
            self._file.close()

    def __enter__(self) -> "ExplainedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Store(ABC):
    """Paths are relative to `prefix`, with forward slashes. Missing objects raise FileNotFoundError."""

    prefix: str
    """A folder's absolute path or a URL, without a trailing slash."""
    max_path_in_bytes: int
    """Of a path, relative to the prefix."""

    def make_contact(self) -> None:  # noqa: B027 -- a folder is where it is
        """Raises StoreError, with the cure, if nobody answers at the prefix or there is no such bucket."""

    @abstractmethod
    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        """All objects below `folder`, at any depth, whose path inside it begins with `starting_with`; sorted."""

    @abstractmethod
    def read(self, path: str) -> bytes: ...

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Creates `path` with all of `data`, or leaves what is there. True if and only if this call created it."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Creates or replaces `path`; a reader sees all of the old bytes or all of the new ones."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Deletes `path`; a path that is not there is no error."""

    def tidy(self, path: str) -> None:  # noqa: B027 -- a bucket has no folders
        """Takes away the folders that `path` lay in before it was deleted, as far as they are empty; a bucket has none.

        For what lies where no attempt is at work: the folder of one may be empty and needed.
        """

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def open(self, path: str, mode: str = "rb") -> IO[bytes] | ExplainedFile:
        """A file of a step's output, for reading ("rb") or writing ("wb"); not atomic, so never for a record."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Makes `target` the same bytes as `source` without moving them through this process."""

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """As `write`, of what is too large for the memory. If `blocks` raises, `path` is as it was."""
        self.write(path, b"".join(blocks))

    def sweep(self, folder: str, *, older_than_seconds: float = 0.0) -> int:
        """Deletes what killed writers left below `folder`, where nobody writes that began so long ago; how much."""
        return 0

    def can_copy_from(self, other: "Store") -> bool:
        """Whether `copy_from` is there for `other`: a store of the same cloud, which knows the checksums of all."""
        return False

    def copy_from(self, other: "Store", path: str) -> None:
        """Makes `path` the same bytes as in `other`, past this process."""
        raise NotImplementedError(f"{self.prefix}: nothing is copied inside this store; see can_copy_from")

    @abstractmethod
    def settle(self, path: str) -> tuple[int, str]:
        """Makes the file durable; returns its size and the CRC32C (eight hex digits) of what the store holds."""

    def make_folder(self, path: str, *, is_durable: bool = False) -> str:
        """The URL of a folder that a step may write in; on a disk it exists from now on.

        Args:
            path: relative to the prefix.
            is_durable: it outlives a power cut from now on, and not only from the first `settle` below it on.
        """
        return self.url(path)

    def url(self, path: str) -> str:
        """What a step function opens to reach `path`."""
        return f"{self.prefix}/{checked(path)}" if path else self.prefix


def checked(path: str) -> str:
    """`path` itself, refused if it could leave the prefix or name two objects."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"store path {path!r}: empty, absolute or with '.' or '..'; use names joined by single slashes."
        )
    return path


def limit_met(error: BaseException) -> OSError | None:
    """The limit of the machine that a write met, which TensorStore tells in words alone; None for any other error."""
    if isinstance(error, OSError):
        return error if error.errno in LIMITS else None
    number = TENSORSTORE_OS_ERROR.search(str(error)) if isinstance(error, ValueError) else None
    if number is None or int(number[1]) not in LIMITS:
        return None
    path = TENSORSTORE_PATH.search(str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), path and path[1])


def explain_os_error(error: OSError, path: str) -> str:
    """One line for a person: which file, what is wrong, what to do about it."""
    again = "then run the same command again, nothing finished is lost"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            cure = f"the disk (or your quota) is full; free some space or pass another --prefix, {again}"
        case errno.EFBIG:
            cure = f"the file is larger than this process may write; raise `ulimit -f`, {again}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            cure = "no permission to write there; get it (`ls -ld` shows who has) or pass another --prefix"
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            cure = "a file stands where a folder is needed, or the reverse; move it away or pass another --prefix"
        case errno.EMFILE | errno.ENFILE:
            cure = f"too many open files; raise `ulimit -n`, {again}"
        case errno.ENAMETOOLONG:
            cure = "the name is too long for this file system; pass a shorter --prefix, or give the step a shorter name"
        case errno.ELOOP:
            cure = "symbolic links lead in a circle; remove one of them or pass another --prefix"
        case errno.EIO:
            cure = f"the disk reports a fault (`dmesg` says which); pass a --prefix on another disk, {again}"
        case number if number in TRANSIENT_NUMBERS:
            cure = f"the network file system does not answer; see that it is mounted (`df` names it), {again}"
        case _:
            cure = (
                f"an error that this program does not know; `df -h` and `ls -ld` on the folder may tell more, {again}"
            )
    return f"{path}: {error.strerror or error}: {cure}."
