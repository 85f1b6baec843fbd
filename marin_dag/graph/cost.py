"""Cost of a step: estimates from its config and resources, which a plan adds up before it runs."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cost:
    """Estimates; 0 where a kind cannot know."""

    tokens: float = 0
    flops: float = 0
    chip_hours: float = 0
    bytes_read: float = 0
    bytes_written: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(*(a - b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))
