"""Limits of readers: the cost of one document and one file is bounded, whatever the file holds."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

from runtime.text.extraction.extracted import DamagedFileError

TOO_LARGE = "too large"
"""The reason that counts documents above `max_document_bytes`."""
FREE_BYTES = 256 << 20
"""A file that unpacks to less costs too little to ask for its ratio."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that one document and one file may cost; a document above a limit is counted, named and left out."""

    max_document_bytes: int = 32 << 20
    """Unpacked bytes of one line, row, record or page; memory holds a few of them. Trafilatura stops at 20 MB."""
    max_expansion: int = 100
    """Unpacked bytes of a file for each packed byte; Apache Tika and POI stop there, too."""
    max_document_seconds: float = 60.0
    """Processor time for one page, record or member; most take a millisecond."""
    max_document_memory: int = 4 << 30
    """Bytes of memory for one page, record or member."""


DEFAULTS = Limits()


class Unpacked(io.RawIOBase):
    """A stream of unpacked bytes that raises DamagedFileError above `max_expansion`.

    Args:
        stream: Gives the unpacked bytes.
        packed_bytes: Returns how many packed bytes the stream has read.
        name: The file in messages.
        limits: The limits.
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
        if self._size > FREE_BYTES:
            self._check()
        buffer[: len(data)] = data
        return len(data)

    def _check(self) -> None:
        packed = self._packed_bytes()
        if self._size > self._limits.max_expansion * packed:
            raise DamagedFileError(
                f"{self._name}: {packed:,} bytes unpack to more than {self._size:,}, above `limits.max_expansion` of "
                f"{self._limits.max_expansion:,}. Leave the file out, or raise the limit."
            )

    def close(self) -> None:
        self._stream.close()
        super().close()
