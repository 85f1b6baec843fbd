"""Local array: the files of a flat array on this machine's disk, mapped into memory.

A window of 4,096 tokens is a few microseconds of mapped memory, and a hundred of a library that is made for stores far
away. What is read is checked as there, once: a chunk against its CRC32C before the first of its elements is given out,
the index of a file against its own.

The layout is that of zarr3's sharding codec with the index at the end: chunks of little-endian numbers with their
CRC32C behind them, then for each chunk its offset and length (64 bits each), then the CRC32C of that.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from jaxtyping import Integer

CHECKSUM_BYTES = 4
ENTRY = struct.Struct("<QQ")


class LocalArrayError(ValueError):
    """A file that is missing, cut short, or holds other bytes than were written; the message names it."""


class _File(NamedTuple):
    data: mmap.mmap
    offsets: list[int]
    """Of each chunk; -1 where there is none."""
    chunks: list[np.ndarray | None]
    """Those that were checked."""


class LocalArray:
    """Elements of a finished array. A file is mapped when it is first read, and must not shrink from then on."""

    def __init__(self, folder: str, dtype: np.dtype, *, file_length: int, chunk_length: int) -> None:
        self._folder = Path(folder)
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._file_length, self._chunk_length = file_length, chunk_length
        self._files: dict[int, _File] = {}

    def read_into(self, start: int, stop: int, out: Integer[np.ndarray, "n"], place: int) -> None:
        """Copies the elements `start` to `stop` to `out`, from `place` on."""
        length, of_file = self._chunk_length, self._file_length
        while start < stop:
            number, inside = divmod(start, of_file)
            index, first = divmod(inside, length)
            file = self._files.get(number) or self._mapped(number)
            chunk = file.chunks[index]
            if chunk is None:
                chunk = self._checked(number, file, index)
            count = min(length - first, stop - start)
            out[place : place + count] = chunk[first : first + count]
            start += count
            place += count

    def _checked(self, number: int, file: _File, index: int) -> np.ndarray:
        offset, size = file.offsets[index], self._chunk_length * self._dtype.itemsize
        if offset < 0 or offset + size + CHECKSUM_BYTES > len(file.data):
            raise LocalArrayError(f"{self._path(number)}: has no chunk {index}.")
        whole = memoryview(file.data)[offset : offset + size + CHECKSUM_BYTES]
        _check(whole, f"{self._path(number)}: chunk {index}")
        chunk: np.ndarray = np.frombuffer(whole, self._dtype, self._chunk_length)
        file.chunks[index] = chunk
        return chunk

    def _mapped(self, number: int) -> _File:
        path = self._path(number)
        try:
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: it is empty
            raise LocalArrayError(f"{path}: cannot be read ({error}).") from error
        count = self._file_length // self._chunk_length
        size = count * ENTRY.size + CHECKSUM_BYTES
        if len(data) < size:
            raise LocalArrayError(f"{path}: has {len(data)} bytes, fewer than its index.")
        index = memoryview(data)[len(data) - size :]
        _check(index, f"{path}: its index")
        expected = self._chunk_length * self._dtype.itemsize + CHECKSUM_BYTES
        entries = ENTRY.iter_unpack(index[:-CHECKSUM_BYTES])
        offsets = [offset if nbytes == expected else -1 for offset, nbytes in entries]
        self._files[number] = _File(data, offsets, [None] * count)
        return self._files[number]

    def _path(self, number: int) -> str:
        return f"{self._folder}/c/{number}"


def _check(data: memoryview, what: str) -> None:
    recorded = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    if google_crc32c.value(bytes(data[:-CHECKSUM_BYTES])) != recorded:
        raise LocalArrayError(f"{what} has changed since it was written: its CRC32C is another.")
