"""Remainder: what earlier attempts left of each step that would run, and the work that is left."""

import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from marin_dag.graph.cost import Cost
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import STOP, Reply, Request, Requests
from marin_dag.ledger.work_files import num_finished_shards
from marin_dag.plan.milestones import LeftBehind, MilestoneMissing
from marin_dag.plan.planned import NO_COST, PlannedStep
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
    Stopped,
)
from marin_dag.store.store import Store

SETTLING_SECONDS = 60.0
"""How long the stopped attempt may still write after its reply, and how far clocks may differ."""


def with_remainders(
    steps: Iterable[PlannedStep], left_behind: LeftBehind, milestones: Mapping[str, Sequence[int]]
) -> tuple[PlannedStep, ...]:
    """Return the steps; those that would run have the cost that is left and the reasons of what attempts left.

    The stops of one run are made one after the other, so the cost of each starts at the stop before it. `milestones`
    are the committed ones, by digest.
    """
    steps = tuple(steps)
    stops: dict[str, list[PlannedStep]] = {}
    for planned in steps:
        if planned.will_run and planned.step.until is not None and not _is_forced(planned):
            stops.setdefault(planned.step.digest, []).append(planned)
    before: dict[str, PlannedStep] = {}
    """The stop that a step continues from, by the step's name."""
    for found in stops.values():
        found.sort(key=lambda planned: planned.step.until or 0)
        before.update((later.name, earlier) for earlier, later in itertools.pairwise(found))
    return tuple(
        _with_remainder(planned, left_behind, milestones, before.get(planned.name)) if planned.will_run else planned
        for planned in steps
    )


def _with_remainder(
    planned: PlannedStep, left_behind: LeftBehind, milestones: Mapping[str, Sequence[int]], earlier: PlannedStep | None
) -> PlannedStep:
    if _is_forced(planned):  # it uses nothing that exists
        return dataclasses.replace(planned, cost=whole_cost(planned.step))
    step = planned.step
    reached = max((at for at in milestones.get(step.digest, ()) if at < (step.until or 0)), default=0)
    reached, reasons = _reached(planned, reached, left_behind.of(step.digest))
    begin = 0 if earlier is None else earlier.step.until or 0
    if earlier is not None and begin > max(reached, _start_of(planned)):
        others = (reason for reason in reasons if not isinstance(reason, Continues | Resumes))
        reasons = (*others, Follows(earlier.name, begin))
    whole = _cost_from(step, begin) if begin else whole_cost(step)
    if not reached and whole is planned.cost and reasons is planned.reasons:
        return planned
    if not reached:
        return dataclasses.replace(planned, cost=whole, reasons=reasons)
    left = _cost_from(step, max(begin, reached))
    return dataclasses.replace(planned, cost=left, saved=whole - left, reasons=reasons)


def whole_cost(step: Step[Any]) -> Cost:
    """Return the cost of the whole step; of a phase, from the phase's own start."""
    return NO_COST if step.kind.cost is None else step.kind.cost(step.config, step.resources)


def _cost_from(step: Step[Any], reached: int) -> Cost:
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


def _is_forced(planned: PlannedStep) -> bool:
    return Forced() in planned.reasons


def _reached(planned: PlannedStep, reached: int, kept: Sequence[str]) -> tuple[int, tuple[Reason, ...]]:
    """Return how far the run is, saved states included, and the reasons with what an attempt left."""
    step, reasons = planned.step, planned.reasons
    saved: int | None = None
    if step.until is not None and step.kind.resumes_at is not None:
        saved = max((at for at in step.kind.resumes_at(kept) if reached < at <= step.until), default=None)
    parts = num_finished_shards(kept)
    running = next((reason for reason in reasons if isinstance(reason, Running)), None)
    if running is not None:  # the files belong to a running attempt, not to an interrupted one
        reached = saved or reached
        updated = dataclasses.replace(running, saved=reached or None, parts=parts)
        if running.unit == "steps" and running.done is not None:
            updated = dataclasses.replace(updated, done=max(running.done, reached))  # saved since the last heartbeat
        return reached, tuple(updated if reason is running else reason for reason in reasons)
    if saved is not None and step.until is not None:
        reached = saved
        settled = NeverMade | RecordGone | Continues | (MilestoneMissing if reached == step.until else NeverMade)
        others = tuple(reason for reason in reasons if not isinstance(reason, settled))
        reasons = (*others, Resumes(saved, step.until))
    return reached, (*reasons, KeptParts(parts)) if parts else reasons


def _start_of(planned: PlannedStep) -> int:
    start = planned.step.predecessor
    return 0 if start is None or start.milestone is None else start.milestone


class StopRequests:
    """Stop requests below one prefix. One listing finds the steps with requests; other steps cost nothing."""

    def __init__(self, store: Store) -> None:
        self._store, self._requests, self._records = store, Requests(store), Records(store)

    def of(self, step: Step[Any]) -> tuple[Stopped, ...]:
        """Return the newest stop request that `step` followed, unless an attempt got further or failed since."""
        if step.digest not in self._asked:
            return ()
        for request in reversed(self._requests.of(step.digest)):
            reply = self._requests.reply_to(request) if request.action == STOP else None
            if reply is not None and not reply.is_declined:
                return () if self._is_outdated(step, reply) else (_stopped(request, reply),)
        return ()

    @cached_property
    def _asked(self) -> frozenset[str]:
        return self._requests.digests()

    def _is_outdated(self, step: Step[Any], reply: Reply) -> bool:
        failures = self._records.failures(step.key)
        if failures and failures[-1].finished > reply.sent:
            return True
        settled = datetime.datetime.fromisoformat(reply.sent).timestamp() + SETTLING_SECONDS
        return any(entry.updated > settled for entry in self._store.list("work", f"{step.digest}/"))


def _stopped(request: Request, reply: Reply) -> Stopped:
    text = reply.text.replace(f" ({request.text})", "")  # an attempt may repeat the request in its reply
    return Stopped(request.author, request.reason, request.sent, text)
