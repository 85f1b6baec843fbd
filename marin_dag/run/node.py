"""Node: one step of a run, and how it is doing."""

import dataclasses
from typing import Any, Literal

from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Lease
from marin_dag.ledger.requests import Telling

State = Literal["waiting", "running", "done", "failed", "blocked", "stopped"]


class PreemptedError(Exception):
    """A step saved its work and left, though this driver had not asked it to: its machine was about to go."""

    is_transient = True


@dataclasses.dataclass
class Node:
    """One step of this run, and how it is doing."""

    step: Step[Any]
    state: State = "waiting"
    """"running": handed over to the backend, which may still wait for the resources."""
    has_started: bool = False
    handed_over: float = 0.0
    is_told_queued: bool = False
    not_before: float = 0.0
    is_elsewhere: bool = False
    told_to_publish: frozenset[int] = frozenset()
    """Of a trajectory: what people have told it to publish, beside what the graph wants."""
    told_to_stop: Telling | None = None
    """Who told it to stop while it waited for its resources."""
    has_told: bool = False
    """Whether the attempt of another run has been told what this one wants of it."""
    obstacle: str = ""
    """Why it is blocked: the reason of the first above it that is."""
    lease: Lease | None = None
    num_attempts: int = 0
    num_postponed: int = 0
    num_without_progress: int = 0
    progress_mark: str | None = None
