"""Ranged reads: only the bytes or rows that are asked for, from disks and object stores.

An open file on an object store reads megabytes ahead. A task that takes one range of each of a thousand files would so
read all of them, and every task again.
"""

import io
import itertools
from collections.abc import Iterator

import fsspec
import fsspec.core
import numpy as np
from fsspec.implementations.local import LocalFileSystem

GAP_BYTES = 1 << 16
"""A smaller gap between two rows is read too: that is faster than another request."""
BYTES_AT_ONCE = 64 << 20
_NPY_HEADER_BYTES = 128
"""The header of a file of rows: the format pads it to a multiple of 64, and ours take two."""


def read_bytes(path: str, start: int, end: int) -> bytes:
    """Read the bytes of a file from `start` to before `end`.

    Raises:
        ValueError: the file ends before `end`.
    """
    system, name = fsspec.core.url_to_fs(path)
    data = system.cat_file(name, start=start, end=end) if start < end else b""
    if len(data) != end - start:
        raise ValueError(
            f"{path}: ends {end - start - len(data)} bytes early; it was cut short. Delete it, and run its step again."
        )
    return data


def num_rows(path: str) -> int:
    """Return the number of rows of a two-dimensional .npy file."""
    return _header(path)[0][0]


def read_rows(path: str, rows: np.ndarray) -> np.ndarray:
    """Read rows of a two-dimensional .npy file by ascending numbers: mapped on a disk, else in few requests."""
    system, name = fsspec.core.url_to_fs(path)
    if isinstance(system, LocalFileSystem):
        return np.load(name, mmap_mode="r")[rows]
    (_, width), dtype = _header(path)
    size = width * dtype.itemsize
    found = np.empty((len(rows), width), dtype)
    for runs in _at_once(rows, size):
        starts = [_NPY_HEADER_BYTES + int(rows[begin]) * size for begin, _ in runs]
        ends = [_NPY_HEADER_BYTES + (int(rows[after - 1]) + 1) * size for _, after in runs]
        blocks = system.cat_ranges([name] * len(runs), starts, ends, on_error="raise")
        for (begin, after), block in zip(runs, blocks, strict=True):
            read = np.frombuffer(block, dtype).reshape(-1, width)
            found[begin:after] = read[rows[begin:after] - rows[begin]]
    return found


def _header(path: str) -> tuple[tuple[int, int], np.dtype]:
    file = io.BytesIO(read_bytes(path, 0, _NPY_HEADER_BYTES))
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or len(shape) != 2 or file.tell() != _NPY_HEADER_BYTES:
        raise ValueError(f"{path}: not a file of rows. Delete it, and run its step again.")
    return (shape[0], shape[1]), dtype


def _at_once(rows: np.ndarray, size: int) -> Iterator[list[tuple[int, int]]]:
    """Yield lists of ranges in `rows`; each range is one request, and each list is read at once."""
    if not len(rows):
        return
    cuts = np.flatnonzero(np.diff(rows) * size > GAP_BYTES + size) + 1
    waiting: list[tuple[int, int]] = []
    num_bytes = 0
    for first, last in itertools.pairwise([0, *cuts.tolist(), len(rows)]):
        # A range may be as long as the file.
        parts = np.flatnonzero(np.diff((rows[first:last] - rows[first]) * size // BYTES_AT_ONCE)) + 1 + first
        for begin, after in itertools.pairwise([first, *parts.tolist(), last]):
            length = (int(rows[after - 1] - rows[begin]) + 1) * size
            if waiting and num_bytes + length > BYTES_AT_ONCE:
                yield waiting
                waiting, num_bytes = [], 0
            waiting.append((begin, after))
            num_bytes += length
    yield waiting
