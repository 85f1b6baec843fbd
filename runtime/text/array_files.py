"""Arrays as .npy files in any store, without pickles, and reads of single rows and ranges of bytes.

An open file on an object store reads megabytes ahead. A task that takes one range of each of a thousand files would so
read all of them, and every task again.
"""

import io

import fsspec
import fsspec.core
import numpy as np
from fsspec.implementations.local import LocalFileSystem

GAP_BYTES = 1 << 16
"""A smaller gap between two rows is read too: that is faster than another request."""
_HEADER_BYTES = 128
"""The header of a file of rows: the format pads it to a multiple of 64, and ours take two."""


def write_array(path: str, values: np.ndarray) -> None:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        np.save(file, values, allow_pickle=False)


def read_array(path: str) -> np.ndarray:
    """Read what `write_array` wrote."""
    with fsspec.open(path, "rb") as file:
        return np.load(file, allow_pickle=False)


def read_bytes(path: str, start: int, end: int) -> bytes:
    """Read the bytes of a file from `start` to before `end`. Raise ValueError if the file ends before `end`."""
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
    if not len(rows):
        return np.empty((0, width), dtype)
    size = width * dtype.itemsize
    cuts = np.flatnonzero(np.diff(rows) * size > GAP_BYTES + size) + 1
    parts = np.split(rows, cuts)
    starts = [_HEADER_BYTES + int(part[0]) * size for part in parts]
    ends = [_HEADER_BYTES + (int(part[-1]) + 1) * size for part in parts]
    blocks = system.cat_ranges([name] * len(parts), starts, ends, on_error="raise")
    found = zip(parts, (np.frombuffer(block, dtype).reshape(-1, width) for block in blocks), strict=True)
    return np.concatenate([block[part - part[0]] for part, block in found])


def _header(path: str) -> tuple[tuple[int, int], np.dtype]:
    file = io.BytesIO(read_bytes(path, 0, _HEADER_BYTES))
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or len(shape) != 2 or file.tell() != _HEADER_BYTES:
        raise ValueError(f"{path}: not a file of rows. Delete it, and run its step again.")
    return (shape[0], shape[1]), dtype
