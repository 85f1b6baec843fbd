"""Siblings: earlier outputs under a step's name. A stale step is compared with the nearest of them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.causes import Cause, Causes

MAX_COMPARED = 16
"""Newest identities read for one step. An older one is rarely nearer, and each costs a request."""


class Nearest(NamedTuple):
    """The sibling with the fewest causes of difference; the newest of several."""

    record: Record
    causes: tuple[Cause, ...]
    num_compared: int


class Siblings:
    """The outputs of one prefix, by the names they were made under."""

    def __init__(self, records: Records, labels: Mapping[str, list[str]], committed: frozenset[str]) -> None:
        self._records = records
        self._labels = labels
        self._committed = committed

    def keys(self, name: str) -> list[str]:
        """Return the keys of records made under `name`, newest first."""
        return [key for key in reversed(self._labels.get(name, [])) if key in self._committed]

    def is_noted(self, name: str, key: str) -> bool:
        """Return whether `name` lists `key`, which a run notes just before it commits the record."""
        return key in self._labels.get(name, [])

    def nearest(self, step: Step[Any], causes: Causes) -> Nearest | None:
        """Return the sibling with another identity than `step` that differs least from it."""
        one_each: dict[str, str] = {}
        for key in self.keys(step.name):
            one_each.setdefault(key.partition("@")[0], key)
        one_each.pop(step.digest, None)
        if not one_each:
            return None
        keys = list(one_each.values())[:MAX_COMPARED]
        compared = [(record, causes.of(record.identity, step)) for record in self._read(keys)]
        if not compared:
            return None
        # Between two kinds there is a single difference, the kind, so siblings of the same kind come first.
        kind = step.identity["kind"]
        record, found = min(compared, key=lambda item: (item[0].identity["kind"] != kind, len(item[1])))
        return Nearest(record, found, len(compared))

    def _read(self, keys: list[str]) -> list[Record]:
        if len(keys) < 2:
            found = [self._records.find(key) for key in keys]
        else:
            with ThreadPoolExecutor(MAX_COMPARED) as pool:
                found = list(pool.map(self._records.find, keys))
        return [record for record in found if record is not None]
