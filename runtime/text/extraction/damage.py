"""Damage of a file, kept apart from failures of the store: damage is counted, a failure of the store stops the step."""

import contextlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa

from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.limits import Stream
from runtime.text.fetch.verified import open_file

# The errors of the standard library's and Arrow's readers for damaged bytes.
_BY_READERS = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, pa.ArrowException)
_BUFFER_BYTES = 1 << 20


class StoreFailureError(Exception):
    """A failure of the store while a file was read, as a class that no reader catches.

    `zipfile`, for one, takes any OSError for a damaged file.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Watched(Stream):
    def __init__(self, file: Any) -> None:
        super().__init__(self._read_stored)
        self._file = file

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (self._file.tell() if whence == io.SEEK_CUR else 0)
        if whence != io.SEEK_END and position < 0:
            raise OSError(f"byte {position:,} is before the beginning")  # no errno: damage, see `as_damage`
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def _read_stored(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except Exception as error:  # `store_failures_raised` raises it again
            raise StoreFailureError(error) from error


@contextlib.contextmanager
def open_stored(path: str) -> Iterator[IO[bytes]]:
    """Open a file of any store for reading in any order; failures of the store become StoreFailureError."""
    with open_file(path, "rb") as file:
        yield io.BufferedReader(_Watched(file), _BUFFER_BYTES)


@contextlib.contextmanager
def store_failures_raised() -> Iterator[None]:
    """Raise the store's own error for a StoreFailureError: its class says whether a retry may help."""
    try:
        yield
    except StoreFailureError as failure:
        raise failure.error from None


@contextlib.contextmanager
def as_damage(problem: str, cure: str, *more: type[Exception]) -> Iterator[None]:
    """Raise DamagedFileError, `problem (error); cure`, for what readers, and `more`, raise for damaged bytes.

    Errors of this machine's disk and memory pass as they are.
    """
    try:
        yield
    except (*_BY_READERS, *more) as error:
        # Readers raise an OSError without errno for a bad stream; a disk's has one.
        if isinstance(error, DamagedFileError | MemoryError) or (
            isinstance(error, OSError) and error.errno is not None
        ):
            raise
        raise DamagedFileError(f"{problem} ({str(error) or type(error).__name__}); {cure}") from error
