"""Damage: what of an output is not as its record says, and the same bytes in its place."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.ledger.records import CHECKSUM_THREADS, FileEntry, Record, Records
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store
from marin_dag.values.walk import references_in

NOT_OURS = "is not in the manifest"


class Finding(NamedTuple):
    """One file that is not as its record says."""

    path: str
    """Relative to the output."""
    what: str


def findings_of(store: Store, record: Record, others: Iterable[Record] = ()) -> list[Finding]:
    """Every file of an output that is missing, too many, or holds other bytes.

    Args:
        store: where.
        record: of the output.
        others: records whose outputs may lie inside this one: the milestones of its trajectory.
    """
    inner = tuple(f"{other.output_path}/" for other in others if other.output_path.startswith(f"{record.output_path}/"))
    there = {
        entry.path.removeprefix(f"{record.output_path}/")
        for entry in store.list(record.output_path)
        if not entry.path.startswith(inner)
    }
    wanted = {entry.path: entry for entry in record.manifest}
    with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
        compared = pool.map(lambda path: _compared(store, record, wanted[path]), wanted.keys() & there)
        found = [finding for finding in compared if finding is not None]
    found += [Finding(path, "is missing") for path in wanted.keys() - there]
    found += [Finding(path, NOT_OURS) for path in there - wanted.keys()]
    return sorted(found)


def _compared(store: Store, record: Record, entry: FileEntry) -> Finding | None:
    size, checksum = patiently(lambda: store.settle(f"{record.output_path}/{entry.path}"))
    if size != entry.size_in_bytes:
        return Finding(entry.path, f"has {size} bytes, recorded {entry.size_in_bytes}")
    if checksum != entry.crc32c:
        return Finding(entry.path, f"has CRC32C {checksum}, recorded {entry.crc32c}")
    return None


class DamagedInputError(UserError):
    """Inputs that were committed whole are not whole any more; `steps_to_force` make them again."""

    def __init__(self, message: str, steps_to_force: Sequence[str]) -> None:
        super().__init__(message)
        self.steps_to_force = tuple(steps_to_force)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.steps_to_force)


def refuse_damaged_inputs(records: Records, config: BaseModel) -> None:
    """Before a step computes: are the files of its inputs there, with the sizes that were recorded?

    Costs a listing an input. What files of that size hold is checked by those who read them, and by `verify`.

    Raises:
        DamagedInputError: they are not.
    """
    inputs = {item.key: item.name for _, item in references_in(config) if not item.is_growing}
    with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
        damaged = [found for found in pool.map(lambda key: _lost(records, key), inputs) if found is not None]
    if damaged:
        names = [inputs[record.key] for _, record in damaged]
        said = (
            f"the input {name}: {len(lost)} of its {len(record.manifest)} files are missing or cut, such as "
            f"{records.store.url(record.output_path)}/{lost[0]}. To make them again, run the same command "
            f"with  --force {name} --until {name}"
            for name, (lost, record) in zip(names, damaged, strict=True)
        )
        raise DamagedInputError("\n".join(said), steps_to_force=names)


def _lost(records: Records, key: str) -> tuple[list[str], Record] | None:
    record = records.find(key)
    if record is None:  # of another prefix, as where `verify --rerun` works
        return None
    listed = patiently(lambda: records.store.list(record.output_path))
    there = {entry.path: entry.size_in_bytes for entry in listed}
    lost = [
        entry.path
        for entry in record.manifest
        if there.get(f"{record.output_path}/{entry.path}") != entry.size_in_bytes
    ]
    return (lost, record) if lost else None


def repair(store: Store, record: Record, folder: str, others: Iterable[Record] = ()) -> tuple[str, ...]:
    """Puts the files of `folder`, which holds what `record` says, in the place of those of its output that do not.

    What is not in the manifest stays. A kill in the midst leaves a file missing, which the next repair finds.

    Returns:
        The paths of the files that were replaced, relative to the output.
    """
    damaged = [found.path for found in findings_of(store, record, others) if found.what != NOT_OURS]
    for path in damaged:
        target = f"{record.output_path}/{path}"
        store.delete(target)
        store.copy(f"{folder}/{path}", target)
        store.settle(target)
    return tuple(damaged)
