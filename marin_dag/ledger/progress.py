"""Progress: how far a running step is."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a step, in a unit of its own."""

    done: int
    total: int
    unit: str
    figures: dict[str, float]
    begin: float = 0
    """Amount done before the step started: 600 for a phase from step 600 to 841."""

    @property
    def share(self) -> float:
        """Finished share of the step's own work, between 0 and 1."""
        own = self.total - self.begin
        return min(1.0, max(0.0, (self.done - self.begin) / own)) if own > 0 else 1.0
