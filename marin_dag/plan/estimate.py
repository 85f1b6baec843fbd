"""Estimate: the cost of steps, and their time from recorded attempts of the same kind on the same resources."""

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from marin_dag.graph.cost import Cost
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.planned import NO_COST, PlannedStep

MAX_SAMPLES = 3
"""Records read for one kind and resources: a plan must not send one request per step."""

UNITS = ("flops", "tokens", "bytes_read", "bytes_written")
"""The time of a step is proportional to the first of these that its kind estimates."""

Key = tuple[int, str, str]
"""Kind, resources and unit: a laptop's time predicts nothing about a slice of TPUs."""


class RecordedTimes:
    """Seconds for each unit of work, by kind of step, resources and unit.

    They come from the outputs that exist, or else from those that stale steps are compared with.
    """

    def __init__(self, records: Records, steps: Iterable[PlannedStep], committed: frozenset[str]) -> None:
        self._records = records
        self._samples: dict[Key, list[tuple[str, Step[Any]]]] = {}
        """Record keys, each with the step whose work it measured."""
        self._rates: dict[Key, float | None] = {}
        for planned in steps:
            made = planned.step.key if planned.step.key in committed else planned.compared and planned.compared.key
            if made:
                self._samples.setdefault(_key(planned.step), []).append((made, planned.step))

    @property
    def is_empty(self) -> bool:
        """Whether no attempt is recorded."""
        return not self._samples

    def rate(self, step: Step[Any]) -> float | None:
        """Return seconds for a unit of work; None where no attempt is recorded."""
        key = _key(step)
        if key not in self._rates:
            # Samples with the most work, since a small step spends most of its time on starting.
            found = self._samples.get(key, [])
            made = [sample for sample in found if sample[0] == sample[1].key] or found
            samples = sorted(made, key=lambda sample: _work(sample[1], sample[1].config))[-MAX_SAMPLES:]
            rates = [rate for sample in samples if (rate := self._rate_of(*sample)) is not None]
            self._rates[key] = sorted(rates)[len(rates) // 2] if rates else None
        return self._rates[key]

    def _rate_of(self, key: str, step: Step[Any]) -> float | None:
        record = self._records.find(key)
        if record is None or record.provenance.resources != str(step.resources):
            return None
        stop = step.kind.stop_field
        # Apart from the stop, a stale step is taken to have had as much work as it has now.
        config = step.config if stop is None else step.config.model_copy(update={stop: record.milestone})
        work = _work(step, config)
        return _duration(record) / work if work > 0 else None


def with_seconds(
    steps: tuple[PlannedStep, ...], records: Records, committed: frozenset[str]
) -> tuple[PlannedStep, ...]:
    """Return the steps; those that would run have an estimate of their time where one is recorded."""
    recorded = RecordedTimes(records, steps, committed)
    if recorded.is_empty:
        return steps

    def estimated(planned: PlannedStep) -> PlannedStep:
        rate = recorded.rate(planned.step)
        if rate is None:
            return planned
        unit = unit_of(planned.step)
        left = getattr(planned.cost, unit) if unit else 1
        saved = getattr(planned.saved, unit) if unit else 0
        return dataclasses.replace(
            planned,
            cost=dataclasses.replace(planned.cost, seconds=rate * left),
            saved=dataclasses.replace(planned.saved, seconds=rate * saved),
            is_timed=True,
        )

    return tuple(estimated(planned) if planned.will_run else planned for planned in steps)


def unit_of(step: Step[Any]) -> str:
    """Return the unit that the time of `step` is proportional to; "" where its kind estimates none."""
    whole = whole_cost(step)
    return next((unit for unit in UNITS if getattr(whole, unit)), "")


def _work(step: Step[Any], config: Any) -> float:
    unit = unit_of(step)
    return float(getattr(step.kind.cost(config, step.resources), unit)) if unit and step.kind.cost else 1.0


def whole_cost(step: Step[Any]) -> Cost:
    """Return the cost of the whole step; of a phase, from the phase's own start."""
    return NO_COST if step.kind.cost is None else step.kind.cost(step.config, step.resources)


def cost_from(step: Step[Any], reached: int) -> Cost:
    """Return the cost that is left of a step whose run has reached milestone `reached`."""
    if step.kind.cost is None or step.kind.stop_field is None:
        return NO_COST
    if step.kind.continues is None:
        done = step.kind.cost(step.config.model_copy(update={step.kind.stop_field: reached}), step.resources)
        return whole_cost(step) - done
    start = step.predecessor
    if start is not None and start.milestone is not None and start.milestone >= reached:
        return whole_cost(step)
    # Computed as if the phase started at `reached`: what a phase writes once, such as a checkpoint, is written again.
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
