"""Local arrays: files of flat arrays on a local disk, mapped into memory and read as one long row.

A window of 4,096 tokens takes a microsecond from mapped memory and a hundred through TensorStore, which is made for
distant stores. Checks are the same, once: a chunk against its CRC32C before its first element is given out, the index
of a file against its own. Chunks that a read must check are fetched from the disk together: page faults one after
another would make the first batch wait a second instead of a tenth.

The layout of a file is that of zarr3's sharding codec with the index at the end: chunks of little-endian numbers, each
followed by its CRC32C; then offset and length of each chunk (64 bits each); then the CRC32C of that index.
"""

import collections
import errno
import functools
import mmap
import resource
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from jaxtyping import Int64

from runtime.data import flat_array
from runtime.data.flat_array import DamagedArrayError, Elements, Numbers
from runtime.data.read_failure import LOST, MAX_MAP_COUNT, with_fix

CHECKSUM_BYTES = 4
ENTRY_BYTES = 16
NO_CHUNK = -1
FETCHED_TOGETHER = 1_024
"""Chunks requested from the disk together: enough for its queue, few enough to stay in memory until checked."""
DEFAULT_MAX_MAPS = 65_530
"""Linux's default number of maps of a process, for systems that do not say theirs."""


class _File(NamedTuple):
    path: str
    data: mmap.mmap
    view: memoryview
    offsets: Int64[np.ndarray, "chunks"]
    """Byte at which each chunk begins, or NO_CHUNK."""


_lock = threading.Lock()
_in_order: collections.deque[tuple["weakref.ref[LocalArrays]", int]] = collections.deque()
"""The mapped files of all arrays of this process, in the order in which they were mapped."""


class LocalArrays:
    """Elements of finished arrays, one array after the other; positions, chunks and files count over all of them.

    A file is mapped when it is first read, and must not change from then on. The arrays of a process keep at most
    `most_maps()` files mapped; a file beyond that is mapped again when it is read. Thread-safe.
    """

    def __init__(self, folders: Sequence[str], lengths: Sequence[int], dtype: np.dtype) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._chunk_length = flat_array.CHUNK_LENGTH
        self._chunks_a_file = flat_array.FILE_LENGTH // self._chunk_length
        self._chunk_bytes = self._chunk_length * self._dtype.itemsize + CHECKSUM_BYTES
        self._index_bytes = self._chunks_a_file * ENTRY_BYTES + CHECKSUM_BYTES
        sizes = np.array([0, *lengths], np.int64)
        self._starts = np.cumsum(sizes)
        self._first_chunk = np.cumsum(-(-sizes // self._chunk_length))
        self._first_file = np.cumsum(-(-sizes // flat_array.FILE_LENGTH))
        self._files: dict[int, _File] = {}
        # Of each checked chunk, one more than its offset; untouched zeros take no memory.
        self._checked = np.zeros(int(self._first_chunk[-1]), np.int64)

    def read_spans(self, starts: Numbers, lengths: Numbers) -> Elements:
        """Return the elements of each span, one span after the other."""
        out = np.empty(int(lengths.sum()), self._dtype)
        if not len(out):
            return out
        filled = lengths > 0
        starts, lengths = starts[filled], lengths[filled]
        stops = starts + lengths
        # Spans are cut into pieces that lie in one chunk each.
        first = self._chunk_of(starts)
        counts = self._chunk_of(stops - 1) - first + 1
        before = np.cumsum(counts) - counts
        chunks = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
        arrays, in_array, files = self._places_of(chunks)
        begins = self._starts[arrays] + in_array * self._chunk_length
        ends = np.minimum(begins + self._chunk_length, self._starts[arrays + 1])
        skipped = np.maximum(np.repeat(starts, counts) - begins, 0)
        sizes = (np.minimum(np.repeat(stops, counts), ends) - begins - skipped) * self._dtype.itemsize
        unknown = np.unique(chunks[self._checked[chunks] == 0])
        for begin in range(0, len(unknown), FETCHED_TOGETHER):
            self._check(unknown[begin : begin + FETCHED_TOGETHER])
        offsets = self._checked[chunks] - 1 + skipped * self._dtype.itemsize
        places = np.cumsum(sizes)
        views = {file: mapped.view for file, mapped in self._mapped(np.unique(files)).items()}
        target = out.data.cast("B")
        # The loop only copies: it is what a batch costs.
        for file, begin, end, place, until in zip(
            *(part.tolist() for part in (files, offsets, offsets + sizes, places - sizes, places)), strict=True
        ):
            target[place:until] = views[file][begin:end]
        return out

    def _chunk_of(self, positions: Numbers) -> Numbers:
        arrays = np.searchsorted(self._starts, positions, side="right") - 1
        return self._first_chunk[arrays] + (positions - self._starts[arrays]) // self._chunk_length

    def _places_of(self, chunks: Int64[np.ndarray, "n"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the array of each chunk, its number in the array, and its file."""
        arrays = np.searchsorted(self._first_chunk, chunks, side="right") - 1
        in_array = chunks - self._first_chunk[arrays]
        return arrays, in_array, self._first_file[arrays] + in_array // self._chunks_a_file

    def _check(self, chunks: Int64[np.ndarray, "n"]) -> None:
        _, in_array, files = self._places_of(chunks)
        mapped = self._mapped(np.unique(files))
        wanted = []
        for chunk, number, index in zip(
            chunks.tolist(), files.tolist(), (in_array % self._chunks_a_file).tolist(), strict=True
        ):
            file = mapped[number]
            offset = int(file.offsets[index])
            if offset == NO_CHUNK or offset + self._chunk_bytes > len(file.data):
                raise DamagedArrayError(f"{file.path}: has no chunk {index}.")
            _fetch(file.data, offset, self._chunk_bytes)
            wanted.append((chunk, file, index, offset))
        for chunk, file, index, offset in wanted:
            _check_crc32c(file.view[offset : offset + self._chunk_bytes], f"{file.path}: chunk {index}")
            self._checked[chunk] = offset + 1

    def _mapped(self, files: Int64[np.ndarray, "files"]) -> dict[int, _File]:
        """Return these files; they stay mapped while the caller has them."""
        known = self._files
        found = {file: each for file in files.tolist() if (each := known.get(file)) is not None}
        fresh = {}
        for file in files.tolist():
            if file not in found:
                array = int(np.searchsorted(self._first_file, file, side="right")) - 1
                path = f"{self._folders[array]}/c/{file - self._first_file[array]}"
                fresh[file] = path, _map_file(path, self._index_bytes)
        for file, (path, data) in fresh.items():
            view = memoryview(data)
            index = view[len(data) - self._index_bytes :]
            _check_crc32c(index, f"{path}: its index")
            entries = np.frombuffer(index[:-CHECKSUM_BYTES], "<u8").reshape(-1, 2)
            is_chunk = entries[:, 1] == self._chunk_bytes
            offsets = np.where(is_chunk, np.where(is_chunk, entries[:, 0], 0).astype(np.int64), NO_CHUNK)
            found[file] = self._files[file] = _File(path, data, view, offsets)
        if fresh:
            _unmap_oldest(self, list(fresh))
        return found


@functools.cache
def most_maps() -> int:
    """Return half of the files that a process may map or open; the rest is for its threads and other files."""
    _, most_open = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [] if most_open == resource.RLIM_INFINITY else [most_open]
    if (file := Path(MAX_MAP_COUNT)).exists():  # on Linux
        limits.append(int(file.read_text()))
    return max(min(limits, default=DEFAULT_MAX_MAPS) // 2, 1)


def _unmap_oldest(arrays: LocalArrays, files: list[int]) -> None:
    """Record newly mapped files; beyond `most_maps()`, unmap those that were mapped first.

    Least recently read would be no better, as windows are drawn at random, and every read would have to record it.
    """
    with _lock:
        _in_order.extend((weakref.ref(arrays), file) for file in files)
        while len(_in_order) > most_maps():
            oldest, file = _in_order.popleft()
            if (holder := oldest()) is not None:
                holder._files.pop(file, None)


def _map_file(path: str, index_bytes: int) -> mmap.mmap:
    """Map a file and start to fetch its index."""
    try:
        data = _mapping(path)
    except ValueError as error:  # the file is empty
        raise DamagedArrayError(f"{path}: cannot be mapped ({error}).") from error
    except OSError as error:
        if error.errno in LOST:
            raise DamagedArrayError(f"{path}: {error.strerror}.") from error
        raise with_fix(path, error) from error
    if len(data) < index_bytes:
        raise DamagedArrayError(f"{path}: has {len(data)} bytes, fewer than its index.")
    _fetch(data, len(data) - index_bytes, index_bytes)
    return data


def _mapping(path: str) -> mmap.mmap:
    """Map a file; raise the soft limit of open files if it is reached, as a mapping keeps its file open."""
    while True:
        try:
            # For the engine, which would read all of the file for its checksum: chunks are checked here, one by one.
            sys.audit("checked_by_reader", path)
            with open(path, "rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if error.errno != errno.EMFILE or soft == hard:
                raise
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fetch(data: mmap.mmap, offset: int, size: int) -> None:
    """Start to read these bytes from the disk; do not wait."""
    page = offset - offset % mmap.PAGESIZE
    data.madvise(mmap.MADV_WILLNEED, page, offset + size - page)


def _check_crc32c(data: memoryview, what: str) -> None:
    recorded = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    if google_crc32c.value(np.frombuffer(data[:-CHECKSUM_BYTES], np.uint8)) != recorded:
        raise DamagedArrayError(f"{what} has changed since it was written: its CRC32C differs.")
