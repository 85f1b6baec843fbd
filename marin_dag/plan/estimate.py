"""Estimate: how long steps will take, from the attempts on record of steps of their kind on the same resources."""

import dataclasses
import datetime
import statistics
from collections.abc import Iterable
from typing import Any

from marin_dag.graph.cost import Cost
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.former import former_config
from marin_dag.plan.planned import PlannedStep

MAX_SAMPLES = 3
"""Records that are read for one kind and resources: a plan must not ask the store once a step."""

UNITS = ("flops", "tokens", "bytes_read", "bytes_written")
"""What the time of a step is proportional to: the first of these that its kind can tell."""

Key = tuple[int, str, str]
"""Kind, resources and unit: a laptop's time says nothing of a slice of TPUs, nor that of one file of a byte's."""


class PastAttempts:
    """Seconds for each unit of work, by kind of step, resources and unit."""

    def __init__(self, records: Records, steps: Iterable[PlannedStep], committed: frozenset[str]) -> None:
        self._records = records
        self._past: dict[Key, list[tuple[str, Step[Any]]]] = {}
        """Records of each kind, and the step as it is now: the one that was made, or one that changed since."""
        self._rates: dict[Key, float | None] = {}
        for planned in steps:
            step = planned.step
            key = step.key if step.key in committed else planned.compared.key if planned.compared else None
            if key is not None:
                self._past.setdefault(_key(step), []).append((key, step))

    def rate(self, step: Step[Any]) -> float | None:
        """Seconds a unit of work; None where no attempt is on record."""
        key = _key(step)
        if key not in self._rates:
            # Those with the most work, since of a small step most of the time is its start.
            past = sorted(self._past.get(key, []), key=lambda item: _work(item[1]))[-MAX_SAMPLES:]
            found = [self._sample(*item) for item in past]
            rates = [sample for sample in found if sample is not None]
            self._rates[key] = statistics.median(rates) if rates else None
        return self._rates[key]

    def _sample(self, key: str, step: Step[Any]) -> float | None:
        """Seconds a unit of what was done then, which need not be what the step would do now."""
        record = self._records.find(key)
        if record is None or record.provenance.resources != str(step.resources):
            return None
        unit = unit_of(step)
        if not unit:
            return _duration(record)
        config = step.config if key == step.key else former_config(step, record)
        if config is None or step.kind.cost is None:
            return None
        work = getattr(step.kind.cost(config, step.resources), unit)
        return _duration(record) / work if work > 0 else None


def with_seconds(
    steps: tuple[PlannedStep, ...], records: Records, committed: frozenset[str]
) -> tuple[PlannedStep, ...]:
    """The steps that would run, with an estimate of their time; the others as they are."""
    past = PastAttempts(records, steps, committed)

    def estimated(planned: PlannedStep) -> PlannedStep:
        rate = past.rate(planned.step)
        if rate is None:
            return planned
        unit = unit_of(planned.step)
        work, spared = (
            getattr(cost, unit) if unit else whole for cost, whole in ((planned.cost, 1), (planned.saved, 0))
        )
        cost = dataclasses.replace(planned.cost, seconds=rate * work)
        saved = dataclasses.replace(planned.saved, seconds=rate * spared)
        return dataclasses.replace(planned, cost=cost, saved=saved, is_timed=True)

    return tuple(estimated(planned) if planned.will_run else planned for planned in steps)


def unit_of(step: Step[Any]) -> str:
    """What the time of all of `step` is proportional to; "" where its kind can tell nothing of its size."""
    whole = whole_cost(step)
    return next((unit for unit in UNITS if getattr(whole, unit)), "")


def _work(step: Step[Any]) -> float:
    unit = unit_of(step)
    return float(getattr(whole_cost(step), unit)) if unit else 0.0


def whole_cost(step: Step[Any]) -> Cost:
    """Of all of a step, or of all of its leg of a trajectory."""
    return Cost() if step.kind.cost is None else step.kind.cost(step.config, step.resources)


def cost_from(step: Step[Any], reached: int) -> Cost:
    """Of what is left of a step whose trajectory has come to `reached` already."""
    if step.kind.cost is None or step.kind.stop_field is None:
        return Cost()
    if step.kind.continues is None:
        done = step.kind.cost(step.config.model_copy(update={step.kind.stop_field: reached}), step.resources)
        return whole_cost(step) - done
    start = step.predecessor
    if start is not None and start.milestone is not None and start.milestone >= reached:
        return whole_cost(step)
    # As if it started there: what is written once a leg, such as a checkpoint, is written again.
    moved = step.at(step=reached)
    return step.kind.cost(step.config.model_copy(update={step.kind.continues: moved}), step.resources)


def _key(step: Step[Any]) -> Key:
    return id(step.kind), str(step.resources), unit_of(step)


def _duration(record: Record) -> float:
    provenance = record.provenance
    if not provenance.started or not provenance.finished:
        return 0.0
    begin, end = (datetime.datetime.fromisoformat(text) for text in (provenance.started, provenance.finished))
    return max((end - begin).total_seconds(), 0.0)
