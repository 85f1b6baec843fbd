"""Store: the files of a pipeline below one prefix; a local folder, `gs://` and `s3://` behave alike.

The one strong requirement is `create`: of all processes that create a path, exactly one succeeds, and no reader sees
half of the object. On a local disk that is an exclusive hard link, on Cloud Storage `ifGenerationMatch=0`, on S3
`If-None-Match: *`. fsspec's generic `mode="create"` does not suffice: it checks whether the path exists, then writes.
"""

import contextlib
import errno
import os
import re
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, NamedTuple

import google_crc32c

from marin_dag.errors import UserError
from marin_dag.store.retry import OS_ERROR_CODE, TRANSIENT_NUMBERS

BLOCK_IN_BYTES = 1 << 20
LIMITS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write that exceeded a limit of the machine."""
QUOTED_PATH = re.compile(r'"(.+?)"')


class StoreError(UserError):
    """A store refused a request or could not be reached; `is_transient` says whether a retry may help."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class Entry(NamedTuple):
    """An object of a listing; `updated` is in seconds since 1970 by the store's clock."""

    path: str
    size_in_bytes: int
    updated: float


class Store(ABC):
    """A store. Paths are relative to `prefix`, with forward slashes; missing objects raise FileNotFoundError."""

    prefix: str
    """A folder's absolute path or a URL, without a trailing slash."""
    max_path_in_bytes: int
    """Longest path, relative to the prefix."""
    delete_tool: ClassVar[str] = "rm"
    """Command that deletes an object at a URL of this store."""
    max_records_checked: ClassVar[int] = sys.maxsize
    """A plan reads the records of finished steps to check them, unless there are more than this."""

    def make_contact(self) -> None:  # noqa: B027 -- a folder needs none
        """Raise StoreError if the prefix cannot be reached, or its bucket does not exist."""

    @abstractmethod
    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        """Return all objects below `folder` whose path inside it begins with `starting_with`, sorted."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the bytes of `path`."""

    def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield path and bytes of each of many small objects; skip those that do not exist."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                yield path, self.read(path)

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Create `path` with all of `data`; return False and change nothing if it exists."""

    @abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Create or replace `path`; readers see all of the old bytes or all of the new ones."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete `path`, if it exists."""

    def tidy(self, path: str) -> None:  # noqa: B027 -- a bucket has no folders
        """Delete the empty parent folders of a deleted `path`, but no folder of a running attempt."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is an object at `path`."""

    @abstractmethod
    def blocks(self, path: str, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes of `path` from the offset `start` on, a block at a time."""

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy `source` to `target` inside the store."""

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        """Write as `write` does, block by block. If `blocks` raises, `path` stays as it was."""
        self.write(path, b"".join(blocks))

    def sweep(self, folder: str) -> None:  # noqa: B027 -- a bucket has no temporary files
        """Delete temporary files that killed writers left below `folder`."""

    def copy_from(self, other: "Store", path: str, check: Callable[[int, str], object]) -> bool:
        """Copy `path` from `other` inside the cloud of both; return False if they are not of one cloud.

        `check` is called with size and CRC32C of the source before, and raises if it must not be copied.
        """
        return False

    def checksum(self, path: str) -> tuple[int, str]:
        """Return the size and CRC32C (eight hex digits) that the store has; from GCS without reading the object."""
        return self.settle(path)

    @abstractmethod
    def settle(self, path: str) -> tuple[int, str]:
        """Make a file durable; return the size and CRC32C (eight hex digits) that the store has."""

    def make_folder(self, path: str, *, is_durable: bool = False) -> str:
        """Create a folder where the store has folders, flushed now or at the first `settle` in it; return its URL."""
        return self.url(path)

    def delete_command(self, path: str) -> str:
        """Return the shell command that deletes `path`, for messages."""
        return f"{self.delete_tool} {shlex.quote(self.url(path))}"

    def url(self, path: str) -> str:
        return f"{self.prefix}/{checked(path)}" if path else self.prefix


def checked(path: str) -> str:
    """Return `path`; raise ValueError if it could leave the prefix or name an object in two ways."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"store path {path!r}: empty, absolute, or with '.' or '..'. Use names joined by single slashes."
        )
    return path


def checksum_of(blocks: Iterable[bytes]) -> tuple[int, str]:
    """Return size and CRC32C of bytes."""
    checksum, size = google_crc32c.Checksum(), 0
    for block in blocks:
        checksum.update(block)
        size += len(block)
    return size, checksum.digest().hex()


def limit_met(error: BaseException) -> OSError | None:
    """Return the error of a limit that a write exceeded, or None; some libraries give it only as text."""
    if isinstance(error, OSError):
        return error if error.errno in LIMITS else None
    number = OS_ERROR_CODE.search(str(error)) if isinstance(error, ValueError) else None
    if number is None or int(number[1]) not in LIMITS:
        return None
    path = QUOTED_PATH.search(str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), path and path[1])


def explain_os_error(error: OSError, path: str) -> str:
    """Return one line for the user: the file, what is wrong, and the fix."""
    again = "then run the same command again; nothing finished is lost"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            fix = f"the disk (or your quota) is full; free some space or pass another --prefix, {again}"
        case errno.EFBIG:
            fix = f"the file is larger than this process may write; raise `ulimit -f`, {again}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            fix = "no permission to write there; get it (`ls -ld` shows who has) or pass another --prefix"
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            fix = "there is a file where a folder is needed, or the reverse; move it away or pass another --prefix"
        case errno.EMFILE | errno.ENFILE:
            fix = f"raise `ulimit -n`, {again}"
        case errno.ENAMETOOLONG:
            fix = "the name is too long for this file system; pass a shorter --prefix, or give the step a shorter name"
        case errno.ELOOP:
            fix = "symbolic links form a circle; remove one of them or pass another --prefix"
        case errno.EIO:
            fix = f"the disk reports a fault (see `dmesg`); pass a --prefix on another disk, {again}"
        case number if number in TRANSIENT_NUMBERS:
            fix = f"the network file system does not answer; check its mount with `df`, {again}"
        case _:
            fix = f"an unknown error; check the folder with `df -h` and `ls -ld`, {again}"
    return f"{path}: {error.strerror or error}: {fix}."
