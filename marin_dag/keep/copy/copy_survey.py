"""Copy survey: which outputs are at both ends, and which of those the target has from another attempt.

The copy of a record has its bytes. So two listings and, of two records of one size, their bytes tell the copies; only
what differs needs to be understood. 10,000 small reads take a second on a disk, and half a minute on a cloud.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ValidationError

from marin_dag.graph.step import Step
from marin_dag.keep.copy.copying import Copier
from marin_dag.ledger.records import COMMITS, Record, UnreadableRecordError, record_path
from marin_dag.store.retry import patiently

READ_THREADS = 16


def of_other_attempts(copier: Copier, keys: Iterable[str], on_same: Callable[[Record], None]) -> list[str]:
    """Those of `keys` that are at both ends from different attempts, or whose records are damaged; none once the copier
    was told to leave.

    Args:
        copier: from where, and to where.
        keys: of the source.
        on_same: called, from any thread, with the record of each that is there as a copy.

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
            if here[path] == there[path]:
                data = patiently(lambda: copier.source.read(path))
                if data == patiently(lambda: copier.target.read(path)):
                    with contextlib.suppress(ValidationError):  # of a later version of this program, perhaps
                        on_same(Record.model_validate_json(data))
                    return False
            ours, theirs = (patiently(functools.partial(records.find, key)) for records in both_records)
        except FileNotFoundError:  # `gc` has taken it away meanwhile
            return False
        except UnreadableRecordError:
            return True
        return ours is not None and theirs is not None and ours != theirs

    both = [key for key in keys if record_path(key) in here and record_path(key) in there]
    with ThreadPoolExecutor(READ_THREADS) as pool:
        try:
            return [key for key, other in zip(both, pool.map(is_other, both), strict=True) if other]
        except KeyboardInterrupt:
            copier.cancel()  # else all the others are read first
            raise


def keys_of(steps: Iterable[Step[Any]], committed: Iterable[str]) -> dict[str, str]:
    """The outputs of `steps` that are committed, inputs first, each with what a person calls it.

    Of a trajectory those are all its milestones; parts of an output that grows are none, for the whole has all of them.
    """
    milestones: dict[str, list[int]] = {}
    keys = set(committed)
    for key in keys:
        digest, at, milestone = key.partition("@")
        if at:
            milestones.setdefault(digest, []).append(int(milestone))
    steps = tuple(steps)
    legs: dict[str, list[Step[Any]]] = {}
    for step in sorted((step for step in steps if step.until is not None), key=lambda step: step.until or 0):
        legs.setdefault(step.digest, []).append(step)
    found: dict[str, str] = {}
    for step in steps:
        if step.until is None:
            if step.key in keys:
                found.setdefault(step.key, step.name)
            continue
        for at_step in sorted(milestones.pop(step.digest, ())):
            leg = next((leg for leg in legs[step.digest] if (leg.until or 0) >= at_step), legs[step.digest][-1])
            found[f"{step.digest}@{at_step}"] = f"{leg.name}@{at_step}"
    return found
