"""Copy survey: which outputs are at both ends, and which of those the target has from another attempt.

The copy of a record has its bytes. So two listings and, of two records of one size, their bytes tell the copies; only
what differs needs to be understood. 10,000 small reads take a second on a disk, and half a minute on a cloud.
"""

import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from marin_dag.copying import Copier
from marin_dag.records import COMMITS, UnreadableRecordError, record_path
from marin_dag.transient import patiently

READ_THREADS = 16


def of_other_attempts(copier: Copier, keys: Iterable[str]) -> list[str]:
    """Those of `keys` that are at both ends from different attempts, or whose records cannot be read; none once the
    copier was told to leave.

    Raises:
        StoreError: either store.
    """
    here, there = (
        {entry.path: entry.size_in_bytes for entry in patiently(functools.partial(store.list, COMMITS))}
        for store in (copier.source, copier.target)
    )

    both_records = copier.records, copier.target_records

    def is_other(key: str) -> bool:
        path = record_path(key)
        if copier.is_cancelled:
            return False
        try:
            if here[path] == there[path] and patiently(lambda: copier.source.read(path) == copier.target.read(path)):
                return False
            ours, theirs = (patiently(functools.partial(records.find, key)) for records in both_records)
        except FileNotFoundError:  # `gc` has taken it away meanwhile
            return False
        except UnreadableRecordError:
            return True
        return ours is not None and theirs is not None and ours.attempt != theirs.attempt

    both = [key for key in keys if record_path(key) in here and record_path(key) in there]
    with ThreadPoolExecutor(READ_THREADS) as pool:
        try:
            return [key for key, other in zip(both, pool.map(is_other, both), strict=True) if other]
        except KeyboardInterrupt:
            copier.cancel()  # else all the others are read first
            raise
