"""Meter of a run's speed and data stalls, and the monitor of lasting slowdowns.

All hosts wait for the slowest one in every training step: BLOOM-176B lost 6 % to one node.
"""

import contextlib
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from runtime.data.prefetch import Prefetch
from runtime.tracking.events import EventLog
from runtime.training.observer import Alarm, Observer

PROGRESS_SECONDS = 0.5
"""Least time between two reports to the observer."""
PROGRESS_EVENT_SECONDS = 10.0
SPEED_SECONDS = 10.0
"""Window of the reported speed, since the figures of several steps arrive at once."""
STALL_SECONDS = 1.0
"""Shortest data stall with an event of its own."""
LEAST_CAUSE_SECONDS = 0.001
"""Shortest stall of one cause that events list."""
WINDOW_STEPS = 100
SLOWER_FACTOR = 1.05
"""Limit relative to the best median; one slow node cost BLOOM-176B a factor of 1.06."""
SLOW_WINDOWS = 3
"""Consecutive slow windows before an alarm: minutes to an hour, by when passing trouble is over."""


class Meter:
    """Measures one attempt at a phase."""

    def __init__(self, *, until_step: int, tokens_per_step: int, events: EventLog, observer: Observer) -> None:
        self._until_step, self._tokens_per_step = until_step, tokens_per_step
        self._events, self._observer = events, observer
        self._paused_seconds = 0.0
        self._shown = self._logged = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque()
        """Time and number of the steps that ended within the last `SPEED_SECONDS`."""
        self._is_warm = False
        self._tokens_per_second = 0.0
        self._stalled_seconds = 0.0
        self._stalled_by_cause: dict[str, float] = {}

    def note_stall(self, step: int, batches: Prefetch[Any]) -> None:
        """Note, before each step, how long it waited for its batch and for what."""
        seconds, causes = batches.last_wait_seconds, batches.last_wait_causes
        self._stalled_seconds += seconds
        for cause, part in causes.items():
            self._stalled_by_cause[cause] = self._stalled_by_cause.get(cause, 0.0) + part
        if seconds > STALL_SECONDS:
            longest = max(causes, key=causes.__getitem__)
            self._events.write(
                "stall", step=step, cause=longest, waited_for_data_seconds=round(seconds, 3), by_cause=_rounded(causes)
            )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the block, such as that of a save or an evaluation, from the speed."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - began

    def tick(self, step: int, consumed_tokens: int, loss: float | None, *, now: bool = False) -> None:
        """Report the last finished step where a report is due, or `now`.

        Args:
            step: finished steps, as far as the host knows.
            consumed_tokens: tokens of these steps.
            loss: loss of the last of them; None before this attempt has one.
        """
        moment = time.monotonic() - self._paused_seconds
        if not self._marks:  # the first step compiles
            self._shown = moment
            self._marks.append((moment, step))
        elif not self._is_warm and step > self._marks[0][1]:
            # A GPU assembles kernels before their first run, which later speeds must not contain.
            self._measure(moment, step)
            self._marks.clear()
            self._marks.append((moment, step))
            self._is_warm = True
        if now or moment - self._shown >= PROGRESS_SECONDS:
            self._measure(moment, step)
            self._report(step, consumed_tokens, loss, moment, now=now)

    def _measure(self, moment: float, step: int) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= moment - SPEED_SECONDS:
            self._marks.popleft()
        began, first_step = self._marks[0]
        if step > first_step and moment > began:
            self._tokens_per_second = (step - first_step) * self._tokens_per_step / (moment - began)

    def _report(self, step: int, consumed_tokens: int, loss: float | None, moment: float, *, now: bool) -> None:
        self._marks.append((moment, step))
        self._shown = moment
        self._observer.on_progress(step, self._tokens_per_second, loss)
        if moment - self._logged >= PROGRESS_EVENT_SECONDS or now:
            self._logged = moment
            self._events.write(
                "progress",
                step=step,
                until_step=self._until_step,
                consumed_tokens=consumed_tokens,
                tokens_per_second=round(self._tokens_per_second, 1),
                loss=loss if loss is not None and math.isfinite(loss) else None,
                waited_for_data_seconds=round(self._stalled_seconds, 3),
                waited_by_cause=_rounded(self._stalled_by_cause),
            )


class Pace:
    """A monitor of the durations of training steps in which nothing else was done, in one attempt."""

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
        facts = {"best": self._best, "num_steps": SLOW_WINDOWS * WINDOW_STEPS}
        return [Alarm("pace", step, median, SLOWER_FACTOR * self._best, facts)]


def _rounded(causes: Mapping[str, float]) -> dict[str, float]:
    return {cause: round(seconds, 3) for cause, seconds in causes.items() if seconds >= LEAST_CAUSE_SECONDS}
