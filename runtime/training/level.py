"""Level: what a figure of a run has been lately, as a median and a deviation that outliers do not move.

Both are of the last values alone, whatever order they came in: a level that is built anew from the rows of a table is
the very one that was followed through them, to the last bit. Running sums would not be.
"""

import bisect
import collections

NORMAL_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in one median distance from its median."""


class Level:
    """Median and deviation of `size` values, those before the newest `num_recent`; a value costs some microseconds."""

    def __init__(self, size: int, *, num_recent: int) -> None:
        self._size, self._num_recent = size, num_recent
        self.recent: collections.deque[float] = collections.deque()
        """The newest values, oldest first: what is held against the level, and no part of it yet."""
        self._in_order: collections.deque[float] = collections.deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """The newest value, which is finite: a NaN has no place in an order."""
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
        """1.4826 times the median distance from the median; of an even number of distances the upper one."""
        values, median = self._sorted, self.median
        # The values next to the median lie side by side: of all stretches of more than half of them, the one that
        # reaches least far from it. Its left end comes nearer with its start, its right end goes farther.
        reach = len(values) // 2

        def reaches_farther_right(start: int) -> bool:
            return values[start + reach] - median >= median - values[start]

        start = bisect.bisect_left(range(len(values) - reach), True, key=reaches_farther_right)
        stretches = range(max(start - 1, 0), min(start + 1, len(values) - reach))
        return NORMAL_DEVIATION * min(max(median - values[i], values[i + reach] - median) for i in stretches)
