"""Keys on disk, sorted: what lets equal things of a thousand shards meet in a task that holds a part of the keys.

A file has one record for each key of a shard: the key, a second word, and the row that it belongs to. Records are in
order of the key, and the file begins with where each of 1,024 buckets of keys begins, by the key's first ten bits; so a
task reads its range of buckets of every file and nothing else.
"""

import io
from collections.abc import Iterator
from typing import NamedTuple

import fsspec
import numpy as np

RECORD = np.dtype([("key", "<u8"), ("mark", "<u8"), ("row", "<u4")])
"""20 bytes. `mark` is more of the key, or what else tells the row from others of the key."""
NUM_BUCKETS = 1 << 10
_SHIFT = np.uint64(64 - 10)
_HEADER_BYTES = 8 * (NUM_BUCKETS + 1)


class Buckets(NamedTuple):
    """A range of keys, by the numbers of their buckets."""

    first: int
    after: int


ALL_BUCKETS = Buckets(0, NUM_BUCKETS)


def records(keys: np.ndarray, marks: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Records in order of key, mark and row."""
    found = np.empty(len(keys), RECORD)
    order = np.lexsort((rows, marks, keys))
    found["key"], found["mark"], found["row"] = keys[order], marks[order], rows[order]
    return found


def write_keys(path: str, ordered: np.ndarray) -> None:
    """Writes records that are in order."""
    starts = np.searchsorted(ordered["key"] >> _SHIFT, np.arange(NUM_BUCKETS, dtype=np.uint64)).astype("<u8")
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(np.append(starts, np.uint64(len(ordered))).astype("<u8").tobytes())
        file.write(ordered.tobytes())


def read_keys(path: str, buckets: Buckets = ALL_BUCKETS) -> np.ndarray:
    """The records of these buckets, in order."""
    with fsspec.open(path, "rb") as file:
        starts = np.frombuffer(read_exactly(file, _HEADER_BYTES, path), "<u8")
        begin, end = int(starts[buckets.first]), int(starts[buckets.after])
        file.seek(_HEADER_BYTES + begin * RECORD.itemsize)
        return np.frombuffer(read_exactly(file, (end - begin) * RECORD.itemsize, path), RECORD)


def ranges(num_keys: int, keys_per_task: int) -> Iterator[Buckets]:
    """Cuts all keys into ranges of about so many; a range has one bucket at least."""
    count = min(NUM_BUCKETS, max(1, -(-num_keys // keys_per_task)))
    for number in range(count):
        yield Buckets(number * NUM_BUCKETS // count, (number + 1) * NUM_BUCKETS // count)


def read_exactly(file: io.IOBase, size: int, path: str) -> bytes:
    """The next `size` bytes of the file at `path`.

    Raises:
        ValueError: it ends before.
    """
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{path}: ends {size - len(data)} bytes early; it was cut short: run its step anew.")
    return data
