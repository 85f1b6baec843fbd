"""Local arrays: the files of flat arrays on this machine's disk, mapped into memory and read as one long row.

A window of 4,096 tokens is a microsecond of mapped memory, and a hundred of a library that is made for stores far
away. What is read is checked as there, once: a chunk against its CRC32C before the first of its elements is given out,
the index of a file against its own. What a read needs and has not been checked is fetched from the disk all at once:
page faults, one after another, would make the first batch wait a second for a disk that could serve it in a tenth.

The layout of a file is that of zarr3's sharding codec with the index at the end: chunks of little-endian numbers with
their CRC32C behind them, then for each chunk its offset and length (64 bits each), then the CRC32C of that.
"""

import collections
import errno
import functools
import mmap
import resource
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from jaxtyping import Int64, Integer

from runtime.data.read_failure import LOST, MAX_MAP_COUNT, with_cure

CHECKSUM_BYTES = 4
ENTRY_BYTES = 16
NO_CHUNK = -1
FETCHED_AT_ONCE = 1_024
"""Chunks that the disk is asked for together: enough for its queue, little enough to stay in memory until checked."""
DEFAULT_MAX_MAPS = 65_530
"""Linux's own, where nothing says what a process may map."""


class LocalArrayError(ValueError):
    """A file that is missing, cut short, or holds other bytes than were written; the message names it."""


class _File(NamedTuple):
    path: str
    data: mmap.mmap
    view: memoryview
    offsets: Int64[np.ndarray, "chunks"]
    """Byte at which each chunk begins; NO_CHUNK where there is none."""


_lock = threading.Lock()
_in_order: collections.deque[tuple["weakref.ref[LocalArrays]", int]] = collections.deque()
"""The files that are mapped, of all arrays of this process, in the order in which they were."""


class LocalArrays:
    """Elements of finished arrays, one array behind the other; positions count over all of them.

    A file is mapped when it is first read, and must not change from then on. All arrays of a process together keep
    `most_maps()` files mapped; more are read all the same, mapped anew. Thread-safe.
    """

    def __init__(
        self, folders: Sequence[str], lengths: Sequence[int], dtype: np.dtype, *, file_length: int, chunk_length: int
    ) -> None:
        """All are laid out alike: `file_length` elements a file, of which each `chunk_length` have a checksum."""
        self._folders = [Path(folder) for folder in folders]
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._chunk_length, self._chunks_a_file = chunk_length, file_length // chunk_length
        sizes = np.array([0, *lengths], np.int64)
        self._starts = np.cumsum(sizes)
        self._first_chunk = np.cumsum(-(-sizes // chunk_length))
        """Chunks and files are counted over all arrays too; of each array, its first."""
        self._first_file = np.cumsum(-(-sizes // file_length))
        self._files: dict[int, _File] = {}
        # The byte behind the first of each chunk that was checked, else 0; what nobody reads takes no memory.
        self._checked = np.zeros(int(self._first_chunk[-1]), np.int64)

    def read_spans(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        """The elements of each span, one span after the other."""
        out = np.empty(int(lengths.sum()), self._dtype)
        if not len(out):
            return out
        filled = lengths > 0
        starts, lengths = starts[filled], lengths[filled]
        stops = starts + lengths
        # Spans are cut where chunks end: a piece lies in one chunk.
        first = self._chunk_of(starts)
        counts = self._chunk_of(stops - 1) - first + 1
        before = np.cumsum(counts) - counts
        chunks = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
        arrays = np.searchsorted(self._first_chunk, chunks, side="right") - 1
        in_array = chunks - self._first_chunk[arrays]
        begins = self._starts[arrays] + in_array * self._chunk_length
        ends = np.minimum(begins + self._chunk_length, self._starts[arrays + 1])
        skipped = np.maximum(np.repeat(starts, counts) - begins, 0)
        sizes = (np.minimum(np.repeat(stops, counts), ends) - begins - skipped) * self._dtype.itemsize
        self._check_all(chunks)
        offsets = self._checked[chunks] - 1 + skipped * self._dtype.itemsize
        places = np.cumsum(sizes)
        files = self._first_file[arrays] + in_array // self._chunks_a_file
        views = {file: mapped.view for file, mapped in self._held(np.unique(files)).items()}
        target = out.data.cast("B")
        # Nothing but the copy is left for the loop, which is what a batch costs.
        for file, begin, end, place, until in zip(
            *(part.tolist() for part in (files, offsets, offsets + sizes, places - sizes, places)), strict=True
        ):
            target[place:until] = views[file][begin:end]
        return out

    def _chunk_of(self, positions: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        arrays = np.searchsorted(self._starts, positions, side="right") - 1
        return self._first_chunk[arrays] + (positions - self._starts[arrays]) // self._chunk_length

    def _check_all(self, chunks: Int64[np.ndarray, "n"]) -> None:
        """Checks those that have not been."""
        unknown = np.unique(chunks[self._checked[chunks] == 0])
        for begin in range(0, len(unknown), FETCHED_AT_ONCE):
            self._check(unknown[begin : begin + FETCHED_AT_ONCE])

    def _check(self, chunks: Int64[np.ndarray, "n"]) -> None:
        arrays = np.searchsorted(self._first_chunk, chunks, side="right") - 1
        numbers, indices = np.divmod(chunks - self._first_chunk[arrays], self._chunks_a_file)
        files = self._first_file[arrays] + numbers
        mapped = self._held(np.unique(files))
        size = self._chunk_length * self._dtype.itemsize + CHECKSUM_BYTES
        wanted = []
        for chunk, number, index in zip(chunks.tolist(), files.tolist(), indices.tolist(), strict=True):
            file = mapped[number]
            offset = int(file.offsets[index])
            if offset == NO_CHUNK or offset + size > len(file.data):
                raise LocalArrayError(f"{file.path}: has no chunk {index}.")
            _fetch(file.data, offset, size)
            wanted.append((chunk, file, index, offset))
        for chunk, file, index, offset in wanted:
            _refuse_changed(file.view[offset : offset + size], f"{file.path}: chunk {index}")
            self._checked[chunk] = offset + 1

    def _held(self, files: Int64[np.ndarray, "files"]) -> dict[int, _File]:
        """These files, mapped as long as the caller holds them."""
        known = self._files
        held = {file: found for file in files.tolist() if (found := known.get(file)) is not None}
        if len(held) < len(files):
            held |= self._map([file for file in files.tolist() if file not in held])
        return held

    def _map(self, files: list[int]) -> dict[int, _File]:
        arrays = np.searchsorted(self._first_file, files, side="right") - 1
        fresh, mapped = {}, {}
        for file, array in zip(files, arrays.tolist(), strict=True):
            path = f"{self._folders[array]}/c/{file - self._first_file[array]}"
            fresh[file] = path, _mapped(path, self._index_bytes)
        for file, (path, data) in fresh.items():
            view = memoryview(data)
            index = view[len(data) - self._index_bytes :]
            _refuse_changed(index, f"{path}: its index")
            entries = np.frombuffer(index[:-CHECKSUM_BYTES], "<u8").reshape(-1, 2)
            size = self._chunk_length * self._dtype.itemsize + CHECKSUM_BYTES
            offsets = np.where(entries[:, 1] == size, entries[:, 0], 0).astype(np.int64)
            offsets[entries[:, 1] != size] = NO_CHUNK
            mapped[file] = _File(path, data, view, offsets)
        self._files |= mapped
        _let_go_of_the_oldest(self, list(mapped))
        return mapped

    @property
    def _index_bytes(self) -> int:
        return self._chunks_a_file * ENTRY_BYTES + CHECKSUM_BYTES


@functools.cache
def most_maps() -> int:
    """Half of what a process may map, or may have open: the rest is for its threads, its memory and other files."""
    _, most_open = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [] if most_open == resource.RLIM_INFINITY else [most_open]
    if (file := Path(MAX_MAP_COUNT)).exists():  # on Linux
        limits.append(int(file.read_text()))
    return max(min(limits, default=DEFAULT_MAX_MAPS) // 2, 1)


def _let_go_of_the_oldest(arrays: LocalArrays, files: list[int]) -> None:
    """Takes note of files that were mapped; beyond `most_maps()`, those that were mapped first are let go.

    Not the least recently read, which every read would have to note: windows are drawn at random, so that is as good.
    """
    with _lock:
        _in_order.extend((weakref.ref(arrays), file) for file in files)
        while len(_in_order) > most_maps():
            oldest, file = _in_order.popleft()
            if (holder := oldest()) is not None:
                holder._files.pop(file, None)


def _mapped(path: str, index_bytes: int) -> mmap.mmap:
    """The file, with its index on its way from the disk."""
    try:
        data = _mapping(path)
    except ValueError as error:  # it is empty
        raise LocalArrayError(f"{path}: cannot be mapped ({error}).") from error
    except OSError as error:
        if error.errno in LOST:
            raise LocalArrayError(f"{path}: {error.strerror}.") from error
        raise with_cure(path, error) from error
    if len(data) < index_bytes:
        raise LocalArrayError(f"{path}: has {len(data)} bytes, fewer than its index.")
    _fetch(data, len(data) - index_bytes, index_bytes)
    return data


def _mapping(path: str) -> mmap.mmap:
    """A mapping, which keeps its file open: of many billion tokens more than a process may by default."""
    try:
        return _mapping_once(path)
    except OSError as error:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if error.errno != errno.EMFILE or soft == hard:
            raise
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return _mapping_once(path)


def _mapping_once(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _fetch(data: mmap.mmap, offset: int, size: int) -> None:
    """Begins to read these bytes; returns at once."""
    page = offset - offset % mmap.PAGESIZE
    data.madvise(mmap.MADV_WILLNEED, page, offset + size - page)


def _refuse_changed(data: memoryview, what: str) -> None:
    recorded = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
    if google_crc32c.value(np.frombuffer(data[:-CHECKSUM_BYTES], np.uint8)) != recorded:
        raise LocalArrayError(f"{what} has changed since it was written: its CRC32C is another.")
