"""Progress: how far a running step says that it is."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a step is."""

    done: int
    total: int
    unit: str
    figures: dict[str, float]
    begin: float = 0
    """What was done before the step: 600 for a phase that goes from step 600 to 841."""

    @property
    def share(self) -> float:
        """Of the step's own work, between 0 and 1."""
        own = self.total - self.begin
        return min(1.0, max(0.0, (self.done - self.begin) / own)) if own > 0 else 1.0
