"""Estimate: how long steps will take, from the attempts on record of steps of their kind on the same resources."""

import dataclasses
import datetime
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from marin_dag.cost import Cost
from marin_dag.records import Record, Records
from marin_dag.step import Step

if TYPE_CHECKING:
    from marin_dag.plan import PlannedStep

MAX_SAMPLES = 3
"""Records that are read for one kind and resources: a plan must not ask the store once a step."""

Key = tuple[int, str]
"""Kind and resources: what a laptop took says nothing of a slice of TPUs."""


class PastAttempts:
    """Seconds for each unit of work, by kind of step and resources; the unit is whatever the kind can estimate."""

    def __init__(self, records: Records, steps: Iterable["PlannedStep"], committed: frozenset[str]) -> None:
        self._records = records
        self._keys: dict[Key, list[tuple[str, float]]] = {}
        """Kind to records of it, and how many units of work went into each."""
        self._rates: dict[Key, float | None] = {}
        for planned in steps:
            step = planned.step
            key = step.key if step.key in committed else planned.compared.key if planned.compared else None
            if key is not None:
                self._keys.setdefault(_key(step), []).append((key, units(whole_cost(step))))

    def rate(self, step: Step[Any]) -> float | None:
        """Seconds a unit of work; None where no attempt is on record."""
        key = _key(step)
        if key not in self._rates:
            self._rates[key] = self._rate(self._keys.get(key, []), on=key[1])
        return self._rates[key]

    def _rate(self, keys: list[tuple[str, float]], on: str) -> float | None:
        found = [(self._records.find(key), work) for key, work in keys[-MAX_SAMPLES:]]
        rates = [
            _duration(record) / work
            for record, work in found
            if record is not None and record.provenance.resources == on and work > 0
        ]
        return statistics.median(rates) if rates else None


def with_seconds(
    steps: tuple["PlannedStep", ...], records: Records, committed: frozenset[str]
) -> tuple["PlannedStep", ...]:
    """The steps that would run, with an estimate of their time; the others as they are."""
    past = PastAttempts(records, steps, committed)

    def estimated(planned: "PlannedStep") -> "PlannedStep":
        rate = past.rate(planned.step)
        if rate is None:
            return planned
        cost, saved = planned.cost, planned.saved
        cost = dataclasses.replace(cost, seconds=rate * units(cost))
        saved = dataclasses.replace(saved, seconds=rate * units(saved, otherwise=0.0))
        return dataclasses.replace(planned, cost=cost, saved=saved)

    return tuple(estimated(planned) if planned.will_run else planned for planned in steps)


def units(cost: Cost, otherwise: float = 1.0) -> float:
    """What the time of a step is proportional to, as far as its kind can tell."""
    return cost.flops or cost.tokens or cost.bytes_read or cost.bytes_written or otherwise


def whole_cost(step: Step[Any]) -> Cost:
    """Of all of a step, or of all of its leg of a trajectory."""
    return Cost() if step.kind.cost is None else step.kind.cost(step.config)


def cost_from(step: Step[Any], reached: int) -> Cost:
    """Of what is left of a step whose trajectory has come to `reached` already."""
    if step.kind.cost is None or step.kind.stop_field is None:
        return Cost()
    if step.kind.continues is None:
        done = step.kind.cost(step.config.model_copy(update={step.kind.stop_field: reached}))
        return step.kind.cost(step.config) - done
    start = step.predecessor
    if start is not None and start.milestone is not None and start.milestone >= reached:
        return whole_cost(step)
    # As if it started there: what is written once a leg, such as a checkpoint, is written again.
    moved = step.at(step=reached).as_input()
    return step.kind.cost(step.config.model_copy(update={step.kind.continues: moved}))


def _key(step: Step[Any]) -> Key:
    return id(step.kind), str(step.resources)


def _duration(record: Record) -> float:
    provenance = record.provenance
    if not provenance.started or not provenance.finished:
        return 0.0
    begin, end = (datetime.datetime.fromisoformat(text) for text in (provenance.started, provenance.finished))
    return max((end - begin).total_seconds(), 0.0)
