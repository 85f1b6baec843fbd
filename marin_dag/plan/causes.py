"""Causes of staleness: the earlier output that a step is compared with, and the steps that made the differences.

The cause of a changed input is the step above it whose field or code changed.
"""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.identity.diff import Difference, FieldChanged, InputChanged, differences
from marin_dag.ledger.records import Records
from marin_dag.plan.planned import Compared
from marin_dag.record_key import digest_of, milestone_of
from marin_dag.store.redact import without_known_secrets

MAX_COMPARED = 16
"""Number of newest identities read for one step. Older identities are rarely nearer, and each costs a request."""


class Cause(NamedTuple):
    """A difference, and the name of the step where it was made."""

    step: str
    difference: Difference


class Identified(NamedTuple):
    """An identity document, and the names of the steps that have it."""

    name: str
    document: dict[str, Any]
    names: frozenset[str] = frozenset()

    def is_same_step_as(self, other: "Identified") -> bool:
        """Return whether a difference is a change of one step, and not the choice of another step."""
        mine, theirs = self.names | {self.name}, other.names | {other.name}
        return bool(mine & theirs) and self.document["kind"] == other.document["kind"]


class _Pair(NamedTuple):
    """The record keys of an old and a new identity."""

    old_key: str
    new_key: str


class Causes:
    """Differences followed through inputs; identities that the graph does not have come from the records."""

    def __init__(self, graph: Graph, records: Records) -> None:
        self._records = records
        self._known: dict[_Pair, tuple[Cause, ...]] = {}
        self._identified: dict[str, Identified | None] = {}
        self._graph = graph

    # Cached: most plans ask for no cause, and then skip another pass over a large graph.
    @cached_property
    def _by_digest(self) -> dict[str, list[Step[Any]]]:
        found: dict[str, list[Step[Any]]] = {}
        for step in self._graph.steps:
            found.setdefault(step.digest, []).append(step)
        return found

    @cached_property
    def _by_key(self) -> dict[str, Step[Any]]:
        return {step.key: step for step in reversed(self._graph.steps)}

    def of(self, old: dict[str, Any], step: Step[Any]) -> tuple[Cause, ...]:
        """Return why `step` differs from the document `old`: its own changes, then those of its inputs."""
        found = differences(old, without_known_secrets(step.identity))
        for pair in self._above(found):
            self._follow(pair)
        return self._combined(step.name, found)

    def above(self, name: str, difference: InputChanged) -> tuple[Cause, ...]:
        """Return the root causes of one changed input of the step `name`."""
        for pair in self._above((difference,)):
            self._follow(pair)
        return tuple(self._of_input(name, difference))

    def _follow(self, first: _Pair) -> None:
        """Fill `_known` for a pair, without recursion: the cause may be ten thousand steps away."""
        pending = [first]
        while pending:
            pair = pending[-1]
            old, new = self._identity(pair.old_key), self._identity(pair.new_key)
            if pair in self._known:
                pending.pop()
            elif old is None or new is None or not new.is_same_step_as(old):
                self._known[pair] = ()  # a different step, or its record is gone
            else:
                found = differences(old.document, new.document)
                unknown = [above for above in self._above(found) if above not in self._known]
                pending.extend(unknown)
                if not unknown:
                    self._known[pair] = self._combined(new.name, found)

    @staticmethod
    def _above(found: tuple[Difference, ...]) -> list[_Pair]:
        inputs = [_Pair(item.old_key, item.new_key) for item in found if isinstance(item, InputChanged)]
        return [pair for pair in inputs if digest_of(pair.old_key) != digest_of(pair.new_key)]

    def _combined(self, name: str, found: tuple[Difference, ...]) -> tuple[Cause, ...]:
        own: dict[Cause, None] = {}
        above: dict[Cause, None] = {}
        for difference in found:
            if isinstance(difference, InputChanged):
                above.update(dict.fromkeys(self._of_input(name, difference)))
            else:
                own[Cause(name, difference)] = None
        return tuple({**own, **above})

    def _of_input(self, name: str, difference: InputChanged) -> tuple[Cause, ...]:
        old_milestone, new_milestone = milestone_of(difference.old_key), milestone_of(difference.new_key)
        if digest_of(difference.old_key) != digest_of(difference.new_key):
            followed = self._known[_Pair(difference.old_key, difference.new_key)]
            if not followed:
                old, new = self._identity(difference.old_key), self._identity(difference.new_key)
                names = ("" if old is None else old.name, "" if new is None else new.name)
                named = dataclasses.replace(difference, old_name=names[0], new_name=names[1])
                return (Cause(name, named),)
        else:
            followed = ()
        if old_milestone == new_milestone:
            return followed
        stopping = self._by_key.get(difference.new_key)
        if stopping is not None and stopping.kind.stop_field is not None:
            # The input is the last milestone of `stopping`, whose end was moved.
            moved = Cause(stopping.name, FieldChanged(stopping.kind.stop_field, str(old_milestone), str(new_milestone)))
        else:
            moved = Cause(name, FieldChanged(difference.field, f"step {old_milestone}", f"step {new_milestone}"))
        return (moved, *followed)

    def _identity(self, key: str) -> Identified | None:
        if key not in self._identified:
            steps = self._by_digest.get(digest_of(key))
            if steps is not None:
                step = self._by_key.get(key, steps[0])
                self._identified[key] = Identified(
                    step.name, without_known_secrets(step.identity), frozenset(other.name for other in steps)
                )
            else:
                record = self._records.find(key)
                self._identified[key] = None if record is None else Identified(record.name, record.identity)
        return self._identified[key]


class Siblings:
    """The outputs of one prefix, by step name."""

    def __init__(self, records: Records, labels: Mapping[str, list[str]], committed: frozenset[str]) -> None:
        self._records = records
        self._labels = labels
        self._committed = committed

    def keys(self, name: str) -> list[str]:
        """Return the keys of records made under `name`, newest first."""
        return [key for key in reversed(self._labels.get(name, [])) if key in self._committed]

    def is_noted(self, name: str, key: str) -> bool:
        """Return whether `name` lists `key`; a run lists a key just before it commits the record."""
        return key in self._labels.get(name, [])

    def nearest(self, step: Step[Any], causes: Causes) -> tuple[Compared, tuple[Cause, ...]] | None:
        """Return the sibling that differs from `step` by the fewest causes, and the causes; None without siblings."""
        one_each: dict[str, str] = {}
        for key in self.keys(step.name):
            one_each.setdefault(digest_of(key), key)
        one_each.pop(step.digest, None)
        if not one_each:
            return None
        keys = list(one_each.values())[:MAX_COMPARED]
        records = self._records.find_all(keys)
        compared = [(records[key], causes.of(records[key].identity, step)) for key in keys if key in records]
        if not compared:
            return None
        # Steps of two kinds have one difference only, the kind, so siblings of the same kind come first.
        kind = step.identity["kind"]
        record, found = min(compared, key=lambda item: (item[0].identity["kind"] != kind, len(item[1])))
        return Compared(record.key, record.name, record.provenance.finished, len(compared)), found
