"""Planned step: the verdict of one step and the work that is left."""

import dataclasses
import enum
from typing import Any, NamedTuple

from marin_dag.graph.cost import Cost
from marin_dag.graph.step import Step
from marin_dag.plan.reasons import Reason

NO_COST = Cost()


class Verdict(enum.StrEnum):
    """The state of a step before anything runs."""

    DONE = "done"
    MISSING = "missing"
    BEGUN = "begun"
    STALE = "stale"
    DRIFTED = "drifted"
    RUNNING = "running"
    QUEUED = "queued"
    FAILED = "failed"
    BLOCKED = "blocked"


class Compared(NamedTuple):
    """The earlier output that a stale step is compared with."""

    key: str
    name: str
    finished: str
    num_compared: int


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A step of a plan."""

    step: Step[Any]
    verdict: Verdict
    reasons: tuple[Reason, ...]
    will_run: bool
    """Whether the plan runs the step, or waits for another run that does."""
    is_selected: bool
    cost: Cost = NO_COST
    """The work that is left."""
    saved: Cost = NO_COST
    """The work already done: by an earlier milestone, or in the state of an interrupted attempt."""
    compared: Compared | None = None
    """The output that the reasons of a stale step refer to."""

    @property
    def name(self) -> str:
        return self.step.name
