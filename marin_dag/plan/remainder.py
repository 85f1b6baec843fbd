"""Remainder: what is left to do of each step of a plan that would run; what several steps share counts once."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from marin_dag.ledger.lease import LEASES
from marin_dag.ledger.work_files import num_finished_shards
from marin_dag.plan.estimate import cost_from, whole_cost
from marin_dag.plan.milestone_reasons import MilestoneMissing
from marin_dag.plan.planned import PlannedStep
from marin_dag.plan.reasons import (
    Continues,
    Follows,
    Forced,
    KeptParts,
    NeverMade,
    Reason,
    RecordGone,
    Resumes,
    Running,
)
from marin_dag.store.store import Store


def with_remainders(
    steps: Iterable[PlannedStep], left_behind: "LeftBehind", milestones: Mapping[str, Sequence[int]]
) -> tuple[PlannedStep, ...]:
    """The steps that would run, with the cost of what is left and with what an attempt left behind; others as they are.

    The stops of one trajectory are made one after the other, so each counts from the one before it.

    Args:
        steps: of a plan.
        left_behind: what attempts left for the next to go on from.
        milestones: those that are committed, by digest.
    """
    steps = tuple(steps)
    legs: dict[str, list[PlannedStep]] = {}
    for planned in steps:
        if planned.will_run and planned.step.until is not None and not _is_forced(planned):
            legs.setdefault(planned.step.digest, []).append(planned)
    before: dict[str, PlannedStep] = {}
    """The leg that a step goes on from, by the step's name."""
    for found in legs.values():
        found.sort(key=lambda planned: planned.step.until or 0)
        before.update((later.name, earlier) for earlier, later in itertools.pairwise(found))

    def with_remainder(planned: PlannedStep) -> PlannedStep:
        if not planned.will_run:
            return planned
        if _is_forced(planned):  # it sees nothing of what is there
            return dataclasses.replace(planned, cost=whole_cost(planned.step))
        step = planned.step
        reached = max((at for at in milestones.get(step.digest, ()) if at < (step.until or 0)), default=0)
        reached, reasons = _reached(planned, reached, left_behind.of(step.digest))
        earlier = before.get(planned.name)
        begin = 0 if earlier is None else earlier.step.until or 0
        if earlier is not None and begin > max(reached, _start_of(planned)):
            others = (reason for reason in reasons if not isinstance(reason, Continues | Resumes))
            reasons = (*others, Follows(earlier.name, begin))
        whole = cost_from(step, begin) if begin else whole_cost(step)
        if not reached:
            return dataclasses.replace(planned, cost=whole, reasons=reasons)
        left = cost_from(step, max(begin, reached))
        return dataclasses.replace(planned, cost=left, saved=whole - left, reasons=reasons)

    return tuple(with_remainder(planned) for planned in steps)


def _is_forced(planned: PlannedStep) -> bool:
    return Forced() in planned.reasons


def _reached(planned: PlannedStep, reached: int, kept: Sequence[str]) -> tuple[int, tuple[Reason, ...]]:
    """How far the trajectory is, with what an attempt saved of it, and the reasons that say so."""
    step, reasons = planned.step, planned.reasons
    saved: int | None = None
    if step.until is not None and step.kind.resumes_at is not None:
        saved = max((at for at in step.kind.resumes_at(kept) if reached < at <= step.until), default=None)
    parts = num_finished_shards(kept)
    running = next((reason for reason in reasons if isinstance(reason, Running)), None)
    if running is not None:  # what lies there is of an attempt that is at work, and not of an interrupted one
        reached = saved or reached
        told = dataclasses.replace(running, saved=reached or None, parts=parts)
        if running.unit == "steps" and running.done is not None:
            told = dataclasses.replace(told, done=max(running.done, reached))  # saved since the last heartbeat
        return reached, tuple(told if reason is running else reason for reason in reasons)
    if saved is not None and step.until is not None:
        reached = saved
        settled = NeverMade | RecordGone | Continues | (MilestoneMissing if reached == step.until else NeverMade)
        others = tuple(reason for reason in reasons if not isinstance(reason, settled))
        reasons = (*others, Resumes(saved, step.until))
    return reached, (*reasons, KeptParts(parts)) if parts else reasons


def _start_of(planned: PlannedStep) -> int:
    start = planned.step.predecessor
    return 0 if start is None or start.milestone is None else start.milestone


class LeftBehind:
    """What interrupted attempts left for the next, listed only for what somebody has ever worked on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, list[str]] = {}

    def of(self, digest: str) -> list[str]:
        """Files, relative to the work folder."""
        if digest not in self._attempted:
            return []
        if digest not in self._files:
            listed = self._store.list("work", f"{digest}/")
            self._files[digest] = [entry.path.removeprefix(f"work/{digest}/") for entry in listed]
        return self._files[digest]

    @cached_property
    def _attempted(self) -> frozenset[str]:
        return frozenset(entry.path.split("/")[1] for entry in self._store.list(LEASES))
