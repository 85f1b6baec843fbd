"""Node: the state of one step in one driver."""

import dataclasses
from typing import Any, Literal

from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Lease
from marin_dag.ledger.requests import Request

State = Literal["waiting", "running", "done", "failed", "blocked", "stopped"]


@dataclasses.dataclass
class Node:
    """A step and its state in this driver."""

    step: Step[Any]
    state: State = "waiting"
    """"running": the backend has the task, which may still wait for its resources."""
    has_started: bool = False
    submitted: float = 0.0
    is_shown_queued: bool = False
    not_before: float = 0.0
    is_elsewhere: bool = False
    """Whether another driver holds the lease."""
    requested_milestones: frozenset[int] = frozenset()
    """Milestones that people asked for, besides those that the graph needs."""
    stop_request: Request | None = None
    """The request to stop that came while the step waited for its resources."""
    has_requested: bool = False
    """Whether this driver has asked the attempt of another driver for the milestones it needs."""
    obstacle: str = ""
    """Why the step is blocked: the reason of the first blocked step above it."""
    lease: Lease | None = None
    num_attempts: int = 0
    num_postponed: int = 0
    num_without_progress: int = 0
    progress_mark: str | None = None
