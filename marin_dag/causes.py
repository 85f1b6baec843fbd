"""Causes: where a difference was made. A changed input is followed up to the step whose field or function changed."""

from typing import Any, NamedTuple

from marin_dag.diff import Difference, FieldChanged, InputChanged, differences
from marin_dag.graph import Graph
from marin_dag.records import Records
from marin_dag.step import Step


class Cause(NamedTuple):
    """A difference, and the name of the step at which it was made."""

    step: str
    difference: Difference


class Causes:
    """Follows differences through the inputs of old records; each pair of identities is compared once."""

    def __init__(self, graph: Graph, records: Records) -> None:
        self._graph = graph
        self._records = records
        self._known: dict[tuple[str, str], tuple[Cause, ...]] = {}
        self._by_digest: dict[str, Step[Any]] = {}
        for step in graph.steps:
            self._by_digest.setdefault(step.digest, step)

    def of(self, old: dict[str, Any], step: Step[Any]) -> tuple[Cause, ...]:
        """Root causes of `step` not being what `old` documents: its own changes first, then those above it."""
        own: dict[Cause, None] = {}
        above: dict[Cause, None] = {}
        for difference in differences(old, step.identity):
            if isinstance(difference, InputChanged):
                above.update(dict.fromkeys(self._of_input(step, difference)))
            else:
                own[Cause(step.name, difference)] = None
        return tuple({**own, **above})

    def _of_input(self, step: Step[Any], difference: InputChanged) -> tuple[Cause, ...]:
        old_digest, _, old_milestone = difference.old_key.partition("@")
        new_digest, _, new_milestone = difference.new_key.partition("@")
        found: list[Cause] = []
        if old_milestone != new_milestone:
            found.append(Cause(step.name, FieldChanged(difference.field, f"step {old_milestone}", new_milestone)))
        if old_digest != new_digest:
            pair = (difference.old_key, new_digest)
            if pair not in self._known:
                self._known[pair] = self._compared(difference.old_key, new_digest)
            found.extend(self._known[pair] or (Cause(step.name, difference),))
        return tuple(found)

    def _compared(self, old_key: str, new_digest: str) -> tuple[Cause, ...]:
        """Causes at or above the input; none where it is another step altogether, or its record is gone."""
        record, step = self._records.find(old_key), self._by_digest.get(new_digest)
        if record is None or step is None or record.identity["kind"] != step.identity["kind"]:
            return ()
        return self.of(record.identity, step)
