"""Cost of a step: estimates from its config and resources, which a plan adds up before it runs."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Cost:
    """Estimates; 0 where a kind cannot know."""

    work: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Amounts by the units in which the kind counts its work. A plan shows the first one beside the step."""
    bytes_read: float = 0
    bytes_written: float = 0

    def __add__(self, other: "Cost") -> "Cost":
        return self._plus(other, 1)

    def __sub__(self, other: "Cost") -> "Cost":
        return self._plus(other, -1)

    def _plus(self, other: "Cost", factor: int) -> "Cost":
        units = dict.fromkeys([*self.work, *other.work])
        return Cost(
            {unit: self.work.get(unit, 0) + factor * other.work.get(unit, 0) for unit in units},
            self.bytes_read + factor * other.bytes_read,
            self.bytes_written + factor * other.bytes_written,
        )
