"""Level of the last values of a figure, and straight lines through losses: the statistics of monitors.

A level depends on the last values alone. One that is rebuilt from the rows of a table therefore equals, to the last
bit, the level that followed the run. Running sums would not.
"""

import bisect
import collections
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from runtime.optim.skipping import LEAST_DEVIATION

NORMAL_DEVIATION = 1.4826
"""Standard deviations of a normal distribution for each median distance from its median."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median of normal values, relative to that of their mean."""

Losses = Float64[np.ndarray, "steps"]


class Level:
    """Median and deviation of `size` values before the newest `num_recent`."""

    def __init__(self, size: int, *, num_recent: int) -> None:
        self._size, self._num_recent = size, num_recent
        self.recent: collections.deque[float] = collections.deque()
        """The newest values, oldest first: compared with the level, and not part of it yet."""
        self._in_order: collections.deque[float] = collections.deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Add the newest value, which must be finite."""
        self.recent.append(value)
        if len(self.recent) <= self._num_recent:
            return
        value = self.recent.popleft()
        self._in_order.append(value)
        bisect.insort(self._sorted, value)
        if len(self._in_order) > self._size:
            del self._sorted[bisect.bisect_left(self._sorted, self._in_order.popleft())]

    @property
    def lowest(self) -> float:
        return self._sorted[0]

    @property
    def median(self) -> float:
        middle = len(self) // 2
        found = self._sorted[middle]
        return found if len(self) % 2 else (found + self._sorted[middle - 1]) / 2

    @property
    def deviation(self) -> float:
        """1.4826 times the median distance from the median; the upper one for an even number of distances."""
        median = self.median
        return NORMAL_DEVIATION * sorted(abs(value - median) for value in self._sorted)[len(self) // 2]


class Slope(NamedTuple):
    """Change a training step."""

    value: float
    standard_error: float


class Recovery(NamedTuple):
    """A loss after a spike, what was expected before it, and the highest loss that counts as recovered."""

    figure: float
    expected: float
    highest: float


def slope(losses: Losses) -> Slope:
    """Return the slope of the least-squares line through all losses."""
    line = _line(losses, len(losses))
    steps = _centred(len(losses), len(losses))
    squares = float(np.square(steps).sum())
    error = math.sqrt(float(np.square(losses - line).sum()) / (len(losses) - 2) / squares)
    # The slope of a constant loss is rounding alone.
    least = LEAST_DEVIATION * abs(float(losses.mean())) / math.sqrt(squares)
    return Slope(float(losses @ steps) / squares, max(error, least))


def recovery(losses: Losses, *, num_before: int, num_after: int, sigma: float) -> Recovery:
    """Compare the median of the last `num_after` losses with the line through the first `num_before`.

    The spike lies between. The standard error is that of a median and of a line that ends before it. A convex curve
    lies above its lines, so a loss no higher than right before the spike has recovered, whatever the line predicts.
    """
    before, after = losses[:num_before], losses[-num_after:]
    line = _line(before, len(losses))
    distance = NORMAL_DEVIATION * float(np.median(np.abs(before - line[:num_before])))
    deviation = max(distance, LEAST_DEVIATION * abs(float(before.mean())))
    error = MEDIAN_ERROR * deviation * math.sqrt(1 / num_after + 4 / num_before)
    expected = float(np.median(line[-num_after:]))
    return Recovery(
        float(np.median(after)), expected, max(expected + sigma * error, float(np.median(before[-num_after:])))
    )


def _centred(num_fitted: int, length: int) -> Losses:
    """Return step numbers counted from the middle of the first `num_fitted`."""
    return np.arange(length) - (num_fitted - 1) / 2


def _line(fitted: Losses, length: int) -> Losses:
    steps = _centred(len(fitted), length)
    by_step = fitted @ steps[: len(fitted)] / np.square(steps[: len(fitted)]).sum()
    return fitted.mean() + by_step * steps
