"""Level: the median and a robust deviation of the last values of a figure.

Both depend on the last values alone. A level that is rebuilt from the rows of a table therefore equals, to the last
bit, the level that followed the run. Running sums would not.
"""

import bisect
import collections

NORMAL_DEVIATION = 1.4826
"""Standard deviations of a normal distribution for each median distance from its median."""


class Level:
    """Median and deviation of `size` values before the newest `num_recent`; adding a value takes microseconds."""

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
        values, median = self._sorted, self.median
        # The values nearest the median are neighbours. Among all runs of more than half of the values, find the one
        # whose far end is nearest: as its start moves right, its left end comes nearer and its right end goes farther.
        reach = len(values) // 2

        def reaches_farther_right(start: int) -> bool:
            return values[start + reach] - median >= median - values[start]

        start = bisect.bisect_left(range(len(values) - reach), True, key=reaches_farther_right)
        starts = range(max(start - 1, 0), min(start + 1, len(values) - reach))
        return NORMAL_DEVIATION * min(max(median - values[i], values[i + reach] - median) for i in starts)
