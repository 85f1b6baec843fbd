"""Pace: a monitor of lasting slowdowns, such as a slow host, a throttling chip or a bad network.

All hosts wait for the slowest one in every training step. BLOOM-176B lost 6 % to one node. The monitor compares
medians over steps in which nothing else was done, in this attempt alone. Nothing of the run depends on it.
"""

import statistics
import time

from runtime.training.monitors import Alarm

MONITOR = "pace"
WINDOW_STEPS = 100
SLOWER_FACTOR = 1.05
"""Limit relative to the best median; one slow node cost BLOOM-176B a factor of 1.06."""
SLOW_WINDOWS = 3
"""Consecutive slow windows before an alarm: minutes to an hour, by when passing trouble is over."""


class Pace:
    """The duration of the training steps of one attempt."""

    def __init__(self, *, is_shared: bool) -> None:
        """`is_shared`: other programs use the same devices (the cores of a CPU), so durations say nothing."""
        self._is_shared = is_shared
        self._ended: float | None = None
        self._seconds: list[float] = []
        self._best = float("inf")
        self._num_slow = 0

    def interrupt(self) -> None:
        """Leave the step under way out of the comparison, because it waits for something else than the devices."""
        self._ended = None

    def end_step(self, step: int) -> list[Alarm]:
        """Return the alarm that `step` causes as it ends, if any."""
        began, self._ended = self._ended, time.monotonic()
        if self._is_shared or began is None:
            return []
        self._seconds.append(self._ended - began)
        if len(self._seconds) < WINDOW_STEPS:
            return []
        median = statistics.median(self._seconds)
        self._seconds.clear()
        self._best = min(self._best, median)
        self._num_slow = self._num_slow + 1 if median > SLOWER_FACTOR * self._best else 0
        if self._num_slow != SLOW_WINDOWS:  # one alarm until the pace recovers
            return []
        message = (
            f"step {step}: a training step takes {median:.4g} s, {median / self._best - 1:.0%} more than the best "
            f"{self._best:.4g} s, for {SLOW_WINDOWS * WINDOW_STEPS} steps now: a host, a chip or the network is slow. "
            "Training continues; request a profile of a few steps with `tell PHASE profile`."
        )
        return [Alarm(MONITOR, step, median, SLOWER_FACTOR * self._best, message)]
