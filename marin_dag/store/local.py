"""LocalStore: a folder on a disk, safe against full disks, other processes and power cuts."""

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from marin_dag.store.retry import TRANSIENT_NUMBERS
from marin_dag.store.store import BLOCK_IN_BYTES, Entry, Store, StoreError, checked, checksum_of, explain_os_error

# Includes files that NFS or a desktop leaves. No other name is hidden: a step's own `.tmp-something` is output.
TEMPORARY_NAME = re.compile(r"\.tmp-[0-9a-f]{32}|\.nfs[0-9a-f]{8,}|\.DS_Store")


class LocalStore(Store):
    """A folder. Files appear whole, by link or rename of a flushed temporary file."""

    def __init__(self, prefix: str) -> None:
        self._root = Path(prefix).expanduser().absolute()
        self.prefix = str(self._root)
        # The system's limit includes the byte that ends a path.
        self.max_path_in_bytes = os.pathconf("/", "PC_PATH_MAX") - 1 - len(os.fsencode(self._root)) - 1

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        base = self._root / checked(folder)
        # Walk only the deepest folder that `starting_with` names in full.
        inside, _, beginning = starting_with.rpartition("/")
        entries: list[Entry] = []
        with _explained(base):
            _walk(base / inside, entries, len(self.prefix) + 1, beginning)
        return sorted(entry for entry in entries if entry.path.startswith(f"{folder}/{starting_with}"))

    def read(self, path: str) -> bytes:
        target = f"{self.prefix}/{checked(path)}"  # no Path: a plan reads ten thousand records
        with _explained(target), open(target, "rb") as file:
            return file.read()

    def create(self, path: str, data: bytes) -> bool:
        if not data:
            return self._create_empty(path)
        with self._temporary(path, (data,)) as (temporary, target, changed):
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
                    raise StoreError(
                        f"{target}: this file system has no hard links, so two runs could overwrite each other's "
                        "records. Pass a --prefix on a local disk, on NFS, or gs://."
                    ) from error
                raise
            _flush(target.parent, *changed)
            return True

    def _create_empty(self, path: str) -> bool:
        """Create a file that is whole as soon as it has a name, so that it needs no temporary one."""
        target = self._root / checked(path)
        with _explained(target):
            try:
                file, changed = _new_file(target)
            except FileExistsError:
                return False
            file.close()
            _flush(target.parent, *changed)
            return True

    def write(self, path: str, data: bytes) -> None:
        self.write_blocks(path, (data,))

    def delete(self, path: str) -> None:
        with _explained(target := self._root / checked(path)):
            target.unlink(missing_ok=True)

    def tidy(self, path: str) -> None:
        with contextlib.suppress(OSError):  # not empty, or gone
            for folder in (self._root / checked(path)).parents:
                if folder == self._root:
                    return
                folder.rmdir()

    def exists(self, path: str) -> bool:
        return (self._root / checked(path)).is_file()

    def blocks(self, path: str, start: int = 0) -> Iterator[bytes]:
        target = self._root / checked(path)
        with _explained(target), target.open("rb") as file:
            file.seek(start)
            while block := file.read(BLOCK_IN_BYTES):
                yield block

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        with self._temporary(path, blocks) as (temporary, target, changed):
            temporary.replace(target)
            _flush(target.parent, *changed)

    def sweep(self, folder: str) -> None:
        with _explained(base := self._root / checked(folder)):
            for left in base.rglob(".tmp-*"):
                if TEMPORARY_NAME.fullmatch(left.name) and left.is_file():
                    left.unlink(missing_ok=True)

    def copy(self, source: str, target: str) -> None:
        link = self._root / checked(target)
        with _explained(link):
            _flush(*_make_folder(link.parent))
            os.link(self._root / checked(source), link)

    def make_folder(self, path: str, *, is_durable: bool = False) -> str:
        with _explained(target := self._root / checked(path)):
            changed = _make_folder(target)
            if is_durable:
                _flush(*changed)
        return str(target)

    def checksum(self, path: str) -> tuple[int, str]:
        return checksum_of(self.blocks(path))

    def settle(self, path: str) -> tuple[int, str]:
        target = self._root / checked(path)
        if target.is_symlink():
            raise StoreError(
                f"{target}: a symbolic link. An output must contain its own bytes, so that a prefix can move. Write "
                "the file itself (shutil.copy and shutil.copytree follow links)."
            )
        if target.exists() and not target.is_file():  # opening a pipe would wait for a writer
            raise StoreError(f"{target}: a pipe, a socket or a device. An output must contain files only; remove it.")
        found = checksum_of(self.blocks(path))
        with _explained(target):
            # With the parent folders, which the step made: a power cut would forget them with their contents.
            _flush(target, *(folder for folder in target.parents if folder.is_relative_to(self._root)))
        return found

    @contextlib.contextmanager
    def _temporary(self, path: str, blocks: Iterable[bytes]) -> Iterator[tuple[Path, Path, tuple[Path, ...]]]:
        """Yield a flushed file with `blocks` beside `path`, the target path, and the folders still to be flushed."""
        target = self._root / checked(path)
        temporary = target.parent / f".tmp-{uuid.uuid4().hex}"
        with _explained(target):
            file, changed = _new_file(temporary)
            try:
                with file:
                    file.writelines(blocks)
                    if file.tell():  # an empty file has only its name, which is in the folder
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
                # A link is listed as a link; `settle` refuses it.
                status = child.stat(follow_symlinks=False)
                entries.append(Entry(child.path[skip:], status.st_size, status.st_mtime))


def _new_file(path: Path) -> tuple[IO[bytes], tuple[Path, ...]]:
    """Open a new file; return it with the changed folders, as `_make_folder` does."""
    changed = _make_folder(path.parent)
    try:
        return path.open("xb"), changed
    except FileNotFoundError:  # another process deleted the empty folder
        changed = _make_folder(path.parent)
        return path.open("xb"), changed


def _make_folder(folder: Path) -> tuple[Path, ...]:
    """Create a folder and its parents; return the changed folders, deepest first, which are still to be flushed.

    Flushed after the file in them, they cost one write of the journal together, not one each.
    """
    if folder.is_dir():
        return ()
    changed = _make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        if not folder.parent.is_dir():  # another process deleted the empty folder
            return _make_folder(folder)
        # A file system such as /proc.
        raise StoreError(f"{folder}: no folder can be made there. Pass another --prefix.") from error
    return (folder.parent, *changed)


def _flush(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _explained(path: Path | str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        is_transient = error.errno in TRANSIENT_NUMBERS
        raise StoreError(explain_os_error(error, str(path)), is_transient=is_transient) from error
