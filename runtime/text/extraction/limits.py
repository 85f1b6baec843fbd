"""Limits of readers: the cost of one document and one file is bounded, whatever the file holds."""

import contextlib
import dataclasses
import io
import itertools
import resource
import signal
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
    """End the process by SIGVTALRM after so much processor time: native code would hold up a handler in Python."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


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


class Unpacked(io.RawIOBase):
    """A stream of unpacked bytes that raises DamagedFileError above `max_expansion`.

    `packed_bytes` returns how many packed bytes the stream has read.
    """

    def __init__(self, stream: Any, packed_bytes: Callable[[], int], name: str, limits: Limits) -> None:
        self._stream = stream
        # Waiting for more than one block would lose it where the stream is cut short.
        self._read = stream.read1 if hasattr(stream, "read1") else stream.read
        self._packed_bytes = packed_bytes
        self._name = name
        self._limits = limits
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        self._size += len(data)
        check_expansion(self._name, self._packed_bytes(), self._size, self._limits)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()
