"""Damage of a file, told from a failure of what it lies in: one is counted and skipped, the other stops the step."""

import contextlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import fsspec
import pyarrow as pa

from runtime.text.extraction.extracted import DamagedFileError

# What the standard library's and Arrow's readers raise for bytes that are not what they should be.
_BY_READERS = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, pa.ArrowException)
_BUFFER_BYTES = 1 << 20


class StoreFailureError(Exception):
    """The store failed while a file was being read; nothing is known to be wrong with the file.

    It is of no family that a reader raises for damage, or swallows: `zipfile` takes any OSError for a file that is none
    of its own.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Watched(io.RawIOBase):
    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (self._file.tell() if whence == io.SEEK_CUR else 0)
        if whence != io.SEEK_END and position < 0:
            raise OSError(f"byte {position:,} is before the beginning")  # without a number, as of a damaged stream
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:  # raised again as it is, by `store_failures_raised`
            raise StoreFailureError(error) from error
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def open_stored(path: str) -> Iterator[IO[bytes]]:
    """A file of any store, to be read in any order; what the store raises on the way is a StoreFailureError."""
    with fsspec.open(path, "rb") as file:
        yield io.BufferedReader(_Watched(file), _BUFFER_BYTES)


@contextlib.contextmanager
def store_failures_raised() -> Iterator[None]:
    """Raises what the store raised, as it was: whether it may pass is told by its class."""
    try:
        yield
    except StoreFailureError as failure:
        raise failure.error from None


@contextlib.contextmanager
def damage_told(what: str, cure: str) -> Iterator[None]:
    """Makes one error of all that readers raise for damaged bytes: `what (error); cure`.

    Raises:
        DamagedFileError: for those, unless the machine ran out of disk or memory.
    """
    try:
        yield
    except _BY_READERS as error:
        # Readers raise a bare OSError for a bad stream; one with a number comes from the disk of this machine.
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise DamagedFileError(f"{what} ({str(error) or type(error).__name__}); {cure}") from error
