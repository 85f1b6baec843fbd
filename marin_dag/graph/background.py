"""Background: how a step that only watches a run yields to the steps of the run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Background:
    """The order in which a background step starts; never identity.

    A background step starts when no other step is queued. At most one is queued for the same resources. The plan
    leaves out a background step that cannot run.
    """

    group: str
    """Group of steps with a common backlog, such as the evaluations of one phase."""
    rank: int
    """The milestone: the highest rank that is ready, which is the newest one, starts first."""
    max_waiting: int | None = None
    """Number of ranks of the group that may wait. When a milestone is published, the driver skips lower ranks."""
