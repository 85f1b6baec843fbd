"""Lines of a file, plain or packed by gzip or zstd, read as a stream."""

import gzip
import io
from collections.abc import Iterator
from typing import IO, Any, cast

import pyarrow as pa

from runtime.text.extraction.damage import as_damage
from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.limits import Limits, Unpacked

_BLOCK_BYTES = 1 << 20
_LARGE_WINDOW = "requires too much memory"
"""Arrow's words for a zstd frame with a window above 128 MiB."""


def lines_of(file: IO[bytes], name: str, limits: Limits, shown: str) -> Iterator[bytes | None]:
    """Yield each line; None for one above `limits.max_document_bytes`, which is never held whole.

    `name` says how the file is packed; messages have `shown`.

    Raises:
        DamagedFileError: the file has no bytes, cannot be unpacked, or unpacks to more than `limits` allow.
    """
    packed = _Counted(file)
    with as_damage(f"{shown}: cannot be unpacked", "it is cut short or not what its name says. Fetch it again."):
        try:
            yield from _split(_unpacked(packed, name, limits, shown), limits.max_document_bytes)
        except OSError as error:
            if _LARGE_WINDOW not in str(error):
                raise
            raise DamagedFileError(
                f"{shown}: was packed with a window above 128 MiB (`zstd --long`), which this reader cannot unpack. "
                "Pack it again: zstd -d --long=31 -c FILE | zstd -o NEW_FILE"
            ) from error
    if not packed.num_bytes:
        raise DamagedFileError(f"{shown}: holds no bytes: its upload was cut short. Fetch it again, or leave it out.")


class _Counted(io.RawIOBase):
    """A file that counts the bytes read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self.num_bytes += len(data)
        buffer[: len(data)] = data
        return len(data)


def _unpacked(packed: _Counted, name: str, limits: Limits, shown: str) -> io.RawIOBase:
    if name.endswith(".gz"):
        file = cast(IO[bytes], io.BufferedReader(packed, _BLOCK_BYTES))
        return Unpacked(gzip.open(file), lambda: packed.num_bytes, shown, limits)
    if name.endswith(".zst"):
        # Arrow's codec: the standard library has none before Python 3.14.
        stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
        return Unpacked(stream, lambda: packed.num_bytes, shown, limits)
    return packed


def _split(stream: io.RawIOBase, max_bytes: int) -> Iterator[bytes | None]:
    """Yield lines in time linear in their length, however long they are."""
    pieces: list[bytes] = []
    size = 0
    while block := stream.read(_BLOCK_BYTES):
        *ended, rest = block.split(b"\n")
        for end in ended:
            size += len(end)
            yield b"".join([*pieces, end]) if size <= max_bytes else None
            pieces, size = [], 0
        size += len(rest)
        pieces.append(rest)
        if size > max_bytes:
            pieces.clear()
    if size:
        yield b"".join(pieces) if size <= max_bytes else None
