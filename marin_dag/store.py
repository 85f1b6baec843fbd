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
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import google_crc32c

from marin_dag.errors import UserError
from marin_dag.storage.transient import TRANSIENT_NUMBERS

# What NFS calls a file that was deleted while it was open, and what a desktop leaves, is nobody's either. Nothing else
# is hidden: a step's own `.tmp-something` is part of its output.
TEMPORARY_NAME = re.compile(r"\.tmp-[0-9a-f]{32}|\.nfs[0-9a-f]{8,}|\.DS_Store")
CHECKSUM_BLOCK_IN_BYTES = 1 << 20
LIMITS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write that met a limit of the machine."""
TENSORSTORE_OS_ERROR = re.compile(r"\[os_error_code='(\d+)'\]")
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


class LocalStore(Store):
    """A folder. Files appear whole, by link or rename of a temporary file that was flushed to the disk first."""

    def __init__(self, prefix: str) -> None:
        self._root = Path(prefix).expanduser().absolute()
        self.prefix = str(self._root)

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        base = self._root / checked(folder)
        # Only the deepest folder that `starting_with` names in full needs walking, and there what begins as it ends.
        inside, _, beginning = starting_with.rpartition("/")
        entries: list[Entry] = []
        with _explained(base):
            _walk(base / inside, entries, len(self.prefix) + 1, beginning)
        return sorted(entry for entry in entries if entry.path.startswith(f"{folder}/{starting_with}"))

    def read(self, path: str) -> bytes:
        with _explained(target := self._root / checked(path)):
            return target.read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        with self._temporary(path, (data,)) as (temporary, target, changed):
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
                    raise StoreError(
                        f"{target}: this file system has no hard links, so that two runs could overwrite each other's "
                        "records; pass a --prefix on a local disk, on NFS, or gs://."
                    ) from error
                raise
            _flush_folders(target.parent, *changed)
            return True

    def write(self, path: str, data: bytes) -> None:
        with self._temporary(path, (data,)) as (temporary, target, changed):
            temporary.replace(target)
            _flush_folders(target.parent, *changed)

    def delete(self, path: str) -> None:
        with _explained(target := self._root / checked(path)):
            target.unlink(missing_ok=True)

    def tidy(self, path: str) -> None:
        with contextlib.suppress(OSError):  # something lies in it, or it is gone
            for folder in (self._root / checked(path)).parents:
                if folder == self._root:
                    return
                folder.rmdir()

    def exists(self, path: str) -> bool:
        return (self._root / checked(path)).is_file()

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        target = self._root / checked(path)
        with _explained(target):
            if mode == "wb":
                _flush_folders(*_make_folder(target.parent))
            return target.open(mode)

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        with self._temporary(path, blocks) as (temporary, target, changed):
            temporary.replace(target)
            _flush_folders(target.parent, *changed)

    def sweep(self, folder: str, *, older_than_seconds: float = 0.0) -> int:
        base, oldest, num_deleted = self._root / checked(folder), time.time() - older_than_seconds, 0
        with _explained(base):
            for left in base.rglob(".tmp-*"):
                if TEMPORARY_NAME.fullmatch(left.name) and left.is_file() and left.stat().st_mtime <= oldest:
                    left.unlink(missing_ok=True)
                    num_deleted += 1
        return num_deleted

    def copy(self, source: str, target: str) -> None:
        link = self._root / checked(target)
        with _explained(link):
            _flush_folders(*_make_folder(link.parent))
            os.link(self._root / checked(source), link)

    def make_folder(self, path: str, *, is_durable: bool = False) -> str:
        with _explained(target := self._root / checked(path)):
            changed = _make_folder(target)
            if is_durable:
                _flush_folders(*changed)
        return str(target)

    def settle(self, path: str) -> tuple[int, str]:
        target = self._root / checked(path)
        if target.is_symlink():
            raise StoreError(
                f"{target}: a symbolic link, and an output holds its own bytes, so that a whole prefix can move; write "
                "the file itself (shutil.copy follows a link, shutil.copytree too)."
            )
        if target.exists() and not target.is_file():  # who opens a pipe waits for a writer
            raise StoreError(f"{target}: a pipe, a socket or a device, and an output holds files; remove it.")
        checksum, size = google_crc32c.Checksum(), 0
        with _explained(target), target.open("rb") as file:
            while block := file.read(CHECKSUM_BLOCK_IN_BYTES):
                checksum.update(block)
                size += len(block)
            os.fsync(file.fileno())
            # The step made the folders on the way, and a power cut forgets a folder with all that is in it.
            folder = target.parent
            while folder.is_relative_to(self._root):
                _flush_folders(folder)
                folder = folder.parent
        return size, checksum.digest().hex()

    @contextlib.contextmanager
    def _temporary(self, path: str, blocks: Iterable[bytes]) -> Iterator[tuple[Path, Path, tuple[Path, ...]]]:
        """A flushed file with `blocks` beside `path`; and the folders that are still to be flushed.

        One that a kill leaves behind has a name that no listing shows; see `sweep`.
        """
        target = self._root / checked(path)
        temporary = target.parent / f".tmp-{uuid.uuid4().hex}"
        with _explained(target):
            changed = _make_folder(target.parent)
            try:
                try:
                    file = temporary.open("xb")
                except FileNotFoundError:  # the folder was empty, and somebody tidied it away
                    changed = _make_folder(target.parent)
                    file = temporary.open("xb")
                with file:
                    file.writelines(blocks)
                    if file.tell():  # of an empty file there is only the name, which the folder holds
                        file.flush()
                        os.fsync(file.fileno())
                yield temporary, target, changed
            finally:
                temporary.unlink(missing_ok=True)


def _walk(folder: Path, entries: list[Entry], skip: int, beginning: str = "") -> None:
    try:
        children = os.scandir(folder)
    except FileNotFoundError:
        return
    with children:
        for child in children:
            if not child.name.startswith(beginning) or TEMPORARY_NAME.fullmatch(child.name):
                continue
            if child.is_dir(follow_symlinks=False):
                _walk(Path(child.path), entries, skip)
                continue
            with contextlib.suppress(FileNotFoundError):  # deleted since the folder was read
                # A link counts as what it is; `settle` refuses it.
                status = child.stat(follow_symlinks=False)
                entries.append(Entry(child.path[skip:], status.st_size, status.st_mtime))


def _make_folder(folder: Path) -> tuple[Path, ...]:
    """The folders that are changed by it, deepest first: until they are flushed a power cut forgets the new ones, with
    the record in them. Flushed after the record, they cost one write of the journal with it, not one each."""
    if folder.is_dir():
        return ()
    changed = _make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        if not folder.parent.is_dir():  # it was empty, and somebody tidied it away
            return _make_folder(folder)
        # A file system such as /proc, in which nothing is made.
        raise StoreError(f"{folder}: no folder can be made there; pass another --prefix.") from error
    return (folder.parent, *changed)


def _flush_folders(*folders: Path) -> None:
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        passes = error.errno in TRANSIENT_NUMBERS
        raise StoreError(explain_os_error(error, str(path)), is_transient=passes) from error


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
