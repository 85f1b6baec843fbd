"""Limits of readers: the cost of one document and one file is bounded, whatever the file holds."""

import contextlib
import dataclasses
import io
import itertools
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

from runtime.text.extraction.extracted import DamagedFileError

TOO_LARGE = "too large"
"""The reason that counts documents above `max_document_bytes`."""
FREE_BYTES = 256 << 20
"""A file that unpacks to less costs too little to ask for its ratio."""

PIECE_BYTES = 1 << 20
MODEL_FILE_BYTES = 256 << 20
"""Largest `tokenizer.json` or configuration that is read: seven times the largest published one."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that one document and one file may cost; a document above a limit is counted, named and left out."""

    max_document_bytes: int = 32 << 20
    """Unpacked bytes of one line, row, record or page; memory holds a few of them. Trafilatura stops at 20 MB."""
    max_expansion: int = 100
    """Unpacked bytes of a file for each packed byte; Apache Tika and POI stop there, too."""
    max_document_seconds: float = 60.0
    """Processor time for one page, record, line or member; most take a millisecond."""
    max_document_memory: int = 4 << 30
    """Bytes of memory for one page, record, line or member, and for rows of a table that are decoded together."""
    max_window_bytes: int = 2 << 30
    """Memory that a file packed by zstd may require: 2 GiB is the format's maximum, which `zstd --long=31` writes."""

    def __post_init__(self) -> None:
        if not 1 << 10 <= self.max_window_bytes <= 2 << 30:
            raise ValueError(f"max_window_bytes is {self.max_window_bytes:,}. Set it between 1 KiB and 2 GiB.")


DEFAULTS = Limits()


def check_expansion(name: str, packed: int, unpacked: int, limits: Limits) -> None:
    """Raise DamagedFileError if a file unpacks to more than the limits allow."""
    if unpacked > FREE_BYTES and unpacked > limits.max_expansion * packed:
        raise DamagedFileError(
            f"{name}: {packed:,} bytes unpack to more than {unpacked:,}, above `limits.max_expansion` of "
            f"{limits.max_expansion:,}. Leave the file out, or raise the limit."
        )


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the process by SIGPROF after so much processor time, the system's included.

    A handler in Python would not run: native code holds it up, and so does CPython 3.11, which may loop for ever where
    it has no memory for the position of an error (`exception_unwind` in `ceval.c`).
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def memory_limit(size_in_bytes: int) -> Iterator[None]:
    """Let allocations fail (MemoryError) where this process would hold more data."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (size_in_bytes, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextlib.contextmanager
def memory_bound(what: str, limits: Limits = DEFAULTS) -> Iterator[None]:
    """Raise DamagedFileError where `what`, a plural, needs more memory than a document may take."""
    try:
        with memory_limit(memory_in_use() + limits.max_document_memory):
            yield
    except MemoryError as error:
        raise DamagedFileError(
            f"{what} take more than {limits.max_document_memory:,} bytes, `limits.max_document_memory`. Leave the file "
            "out, or raise the limit."
        ) from error


def bounded_lines(file: IO[bytes], name: str, limits: Limits = DEFAULTS) -> Iterator[bytes]:
    """Yield the lines of a file; raise DamagedFileError for one above `max_document_bytes`."""
    for number in itertools.count(1):
        line = file.readline(limits.max_document_bytes + 1)
        if len(line) > limits.max_document_bytes:
            raise DamagedFileError(
                f"{name}, line {number}: more than {limits.max_document_bytes:,} bytes; leave it out."
            )
        if not line:
            return
        yield line


def read_bounded(path: str) -> bytes:
    """Return the bytes of a small file of a model; raise DamagedFileError if it is larger than `MODEL_FILE_BYTES`."""
    import fsspec  # too heavy for a plan, which imports this module

    with fsspec.open(path, "rb") as file:
        # Python reserves the bytes that `read(n)` asks for, so the file is read in pieces.
        pieces = iter(lambda: file.read(PIECE_BYTES), b"")
        data = b"".join(itertools.islice(pieces, MODEL_FILE_BYTES // PIECE_BYTES + 1))
    if len(data) > MODEL_FILE_BYTES:
        raise DamagedFileError(f"{path}: more than {MODEL_FILE_BYTES:,} bytes. Fetch or export the file again.")
    return data


def memory_in_use() -> int:
    """Return the bytes of this process that count toward RLIMIT_DATA; 0 on systems without Linux's /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


class Stream(io.RawIOBase):
    """Stream of the bytes that `read` returns, at most as many as it is asked for; `num_bytes` counts them."""

    def __init__(self, read: Callable[[int], bytes], close: Callable[[], object] = lambda: None) -> None:
        self._read, self._close = read, close
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        self.num_bytes += len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._close()
        super().close()


class Unpacked(Stream):
    """A stream of unpacked bytes that raises DamagedFileError above `max_expansion`.

    `packed_bytes` returns how many packed bytes the stream has read.
    """

    def __init__(self, stream: Any, packed_bytes: Callable[[], int], name: str, limits: Limits) -> None:
        # Waiting for more than one block would lose it where the stream is cut short.
        super().__init__(stream.read1 if hasattr(stream, "read1") else stream.read, stream.close)
        self._check = lambda: check_expansion(name, packed_bytes(), self.num_bytes, limits)

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        self._check()
        return size


def zstd() -> Any:
    """Return the Zstandard module, Python's own from 3.14 on; Arrow's codec refuses windows above 128 MiB."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def unpack_zstd(file: Any, name: str, limits: Limits) -> Stream:
    """Return the unpacked bytes of a file of one frame or several, which is `name` in messages.

    Reading raises OSError where the file is damaged, and DamagedFileError if it asks for a window above the limit.
    """
    codec = zstd()
    longest = {codec.DecompressionParameter.window_log_max: limits.max_window_bytes.bit_length() - 1}
    unpacked = codec.ZstdFile(file, options=longest)

    def read(size: int) -> bytes:
        try:
            return unpacked.read1(size)
        except codec.ZstdError as error:
            if "too much memory" not in str(error):  # a part of the error for too large a window
                raise OSError(str(error)) from error
            raise DamagedFileError(
                f"{name}: is packed with a window above {limits.max_window_bytes:,} bytes, `limits.max_window_bytes`. "
                "Raise the limit, or pack the file again: zstd -d --long=31 -c FILE | zstd -o NEW_FILE"
            ) from error

    return Stream(read, unpacked.close)
