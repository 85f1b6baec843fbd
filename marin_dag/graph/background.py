"""Background: how a step that only watches a run yields to the steps of the run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Background:
    """The place of a step among its like; never identity.

    A background step starts when no other step is queued, and one at a time is queued for the same resources. If it
    cannot run, the plan leaves it out.
    """

    group: str
    """Steps of a group share a backlog: the evaluations of one phase."""
    rank: int
    """The highest rank that is ready starts first: the training step, so that the newest is first."""
    max_waiting: int | None = None
    """Ranks of the group that may wait. When a milestone is published, a driver skips the lower ones."""
