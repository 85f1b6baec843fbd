"""Planned: one step of a plan, its verdict and what is left to do of it."""

import dataclasses
import enum
from typing import Any, NamedTuple

from marin_dag.graph.cost import Cost
from marin_dag.graph.step import Step
from marin_dag.plan.reasons import Reason


class Verdict(enum.StrEnum):
    """What is true of a step before anything runs."""

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
    """The output under a stale step's name that is nearest to it."""

    key: str
    name: str
    finished: str
    num_compared: int


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """One step of a plan."""

    step: Step[Any]
    verdict: Verdict
    reasons: tuple[Reason, ...]
    will_run: bool
    """Whether carrying out the plan runs it (or waits for whoever does)."""
    is_selected: bool
    cost: Cost = dataclasses.field(default_factory=Cost)
    """Of what is left to do."""
    saved: Cost = dataclasses.field(default_factory=Cost)
    """Of what is there already and not done again: an earlier milestone, or the state of an interrupted attempt."""
    compared: Compared | None = None
    """Of a stale step: the output that its reasons speak of."""
    is_timed: bool = False
    """Whether past attempts tell how long it takes, if only that it is less than a second."""

    @property
    def name(self) -> str:
        """Label of the step."""
        return self.step.name
