"""Curves and intervals that fits return: plain values, which a plan reads without NumPy."""

import dataclasses
import math

MIN_SCORED = 4
"""Scored models that a task curve needs."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value between the ends of its interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class IsoFlopCurve:
    """Losses of several sizes trained with equal FLOPs."""

    flops: float
    num_parameters: tuple[float, ...]
    losses: tuple[float, ...]
    optimum: float | None
    """Parameters at the minimum of the parabola; None where the parabola has none between these sizes."""


@dataclasses.dataclass(frozen=True)
class TaskCurve:
    """accuracy = chance + height / (1 + exp((loss - middle) / width))."""

    chance: float
    height: float
    middle: float
    width: float

    def accuracy(self, loss: float) -> float:
        """Return the expected accuracy of a model with this loss."""
        return self.chance + self.height * 0.5 * (1 - math.tanh(0.5 * (loss - self.middle) / self.width))
