"""Files of sorted keys, so that equal keys of a thousand shards meet in a task that holds a range of keys.

A file has one record for each key of a shard: the key, a second word, and its row. Records are sorted by key. The file
begins with the places of 1,024 buckets, by the key's first ten bits, so that a task reads only its buckets of every
file.
"""

from collections.abc import Iterator
from typing import NamedTuple

import fsspec
import numpy as np

from runtime.text.ranged_reads import read_bytes

RECORD = np.dtype([("key", "<u8"), ("mark", "<u8"), ("row", "<u4")])
"""20 bytes. `mark` is more of the key, or another value that identifies the row."""
NUM_BUCKETS = 1 << 10
_SHIFT = np.uint64(64 - 10)
_HEADER_BYTES = 8 * (NUM_BUCKETS + 1)


class Buckets(NamedTuple):
    """A range of keys, by the numbers of their buckets."""

    first: int
    after: int


ALL_BUCKETS = Buckets(0, NUM_BUCKETS)


def records(keys: np.ndarray, marks: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return records in the order of key, mark and row."""
    found = np.empty(len(keys), RECORD)
    order = np.lexsort((rows, marks, keys))
    found["key"], found["mark"], found["row"] = keys[order], marks[order], rows[order]
    return found


def write_keys(path: str, ordered: np.ndarray) -> None:
    """Write records that are in order."""
    starts = np.searchsorted(ordered["key"] >> _SHIFT, np.arange(NUM_BUCKETS, dtype=np.uint64)).astype("<u8")
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        file.write(np.append(starts, np.uint64(len(ordered))).astype("<u8").tobytes())
        file.write(ordered.tobytes())


def read_keys(path: str, buckets: Buckets = ALL_BUCKETS) -> np.ndarray:
    """Read the records of these buckets, in order."""
    starts = np.frombuffer(read_bytes(path, 0, _HEADER_BYTES), "<u8")
    begin, end = int(starts[buckets.first]), int(starts[buckets.after])
    size = RECORD.itemsize
    return np.frombuffer(read_bytes(path, _HEADER_BYTES + begin * size, _HEADER_BYTES + end * size), RECORD)


def ranges(num_keys: int, keys_per_task: int) -> Iterator[Buckets]:
    """Yield ranges of about `keys_per_task` keys each; a range has one bucket at least."""
    count = min(NUM_BUCKETS, max(1, -(-num_keys // keys_per_task)))
    for number in range(count):
        yield Buckets(number * NUM_BUCKETS // count, (number + 1) * NUM_BUCKETS // count)
