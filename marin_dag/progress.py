"""Progress: how far a running step says that it is."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a step is."""

    done: int
    total: int
    unit: str
    figures: dict[str, float]
