"""Pace: whether updates take longer than they did, and stay so: a slow host, a chip that throttles, a network.

All hosts wait for the slowest in every update, so a run tells that there is one and not which. BLOOM-176B lost 6 % to
one node. What is compared are medians over updates in which nothing else was done, of this attempt alone; no bit of a
run depends on them, and they are no doubt about its state.
"""

import statistics
import time

from runtime.training.monitors import Alarm

MONITOR = "pace"
WINDOW_UPDATES = 100
SLOWER_FACTOR = 1.05
"""Times the best median: what one slow node cost BLOOM-176B was 1.06."""
SLOW_WINDOWS = 3
"""In a row: minutes to an hour, in which what comes and goes has gone."""


class Pace:
    """The time of the updates of one attempt; where others use the same cores it says nothing of the run."""

    def __init__(self, *, is_shared: bool) -> None:
        """`is_shared` says that other programs come and go on the devices: the cores of a machine."""
        self._is_shared = is_shared
        self._ended: float | None = None
        self._seconds: list[float] = []
        self._best = float("inf")
        self._num_slow = 0

    def interrupt(self) -> None:
        """The update under way waits for something else than the devices: it is not compared."""
        self._ended = None

    def end_update(self, step: int) -> list[Alarm]:
        """The alarm of the update that ends with `step`, where there is one."""
        began, self._ended = self._ended, time.monotonic()
        if self._is_shared or began is None:
            return []
        self._seconds.append(self._ended - began)
        if len(self._seconds) < WINDOW_UPDATES:
            return []
        median = statistics.median(self._seconds)
        self._seconds.clear()
        self._best = min(self._best, median)
        self._num_slow = self._num_slow + 1 if median > SLOWER_FACTOR * self._best else 0
        if self._num_slow != SLOW_WINDOWS:  # once, until the pace has come back
            return []
        message = (
            f"step {step}: an update takes {median:.4g} s, {median / self._best - 1:.0%} more than the "
            f"{self._best:.4g} s that it took at best, and it has been so for {SLOW_WINDOWS * WINDOW_UPDATES} updates: "
            "a host, a chip or a network has become slow. Nothing was stopped or changed; `tell` with the name of the "
            "phase and `profile` traces a few updates."
        )
        return [Alarm(MONITOR, step, median, SLOWER_FACTOR * self._best, message)]
