"""Speed of a run and its waits for data, for people and for the event log."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runtime.data.prefetch import Prefetch
from runtime.tracking.events import EventLog
from runtime.training.run_state import RunState

PROGRESS_SECONDS = 0.5
"""Least time between two calls of `on_progress`."""
PROGRESS_EVENT_SECONDS = 10.0
SPEED_SECONDS = 10.0
"""The speed that is told is that of so long before. One of half a second would be that of the few updates that a loop
has run ahead of its device, or waits for."""
STALL_SECONDS = 1.0
"""A wait for data longer than this gets a line of its own in the event log."""
NOTED_SECONDS = 0.001
"""The least of one cause that is told."""


class Meter:
    """Speed and waits, for people and for the event log."""

    def __init__(
        self,
        *,
        until_step: int,
        tokens_per_step: int,
        events: EventLog,
        on_progress: Callable[[int, float, float | None], None],
    ) -> None:
        self._until_step, self._tokens_per_step = until_step, tokens_per_step
        self._events, self._on_progress = events, on_progress
        self._left_out_seconds = 0.0
        self._shown = self._logged = time.monotonic()
        self._num_ticks = 0
        self._marks: deque[tuple[float, int]] = deque()
        """When which step was reached, of the last `SPEED_SECONDS`."""
        self._tokens_per_second = 0.0
        self._waited_seconds = 0.0
        self._waited_by_cause: dict[str, float] = {}

    def note_wait(self, step: int, batches: Prefetch[Any]) -> None:
        """Before each update: how long it waited for its batch, and for what."""
        seconds, causes = batches.last_wait_seconds, batches.last_wait_causes
        self._waited_seconds += seconds
        for cause, part in causes.items():
            self._waited_by_cause[cause] = self._waited_by_cause.get(cause, 0.0) + part
        if seconds > STALL_SECONDS:
            longest = max(causes, key=causes.__getitem__)
            self._events.write(
                "stall", step=step, cause=longest, waited_for_data_seconds=round(seconds, 3), by_cause=_rounded(causes)
            )

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Time in which no update is taken (a save, an evaluation): it does not count against the speed."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._left_out_seconds += time.monotonic() - began

    def tick(self, run: RunState, loss: float | None, *, now: bool = False) -> None:
        """After each update, with the newest loss known; `now` tells the figures even if others just were."""
        moment = time.monotonic() - self._left_out_seconds
        self._num_ticks += 1
        if self._num_ticks == 1:  # it compiled
            self._shown = moment
            self._marks.append((moment, run.step))
        if self._num_ticks == 2:  # on a GPU it waited while the kernels of the first were assembled
            self._measure(moment, run.step)
            self._marks.clear()
            self._marks.append((moment, run.step))
        if now or moment - self._shown >= PROGRESS_SECONDS:
            self._measure(moment, run.step)
            self._tell(run, loss, moment, now=now)

    def _measure(self, moment: float, step: int) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= moment - SPEED_SECONDS:
            self._marks.popleft()
        began, first_step = self._marks[0]
        if step > first_step and moment > began:
            self._tokens_per_second = (step - first_step) * self._tokens_per_step / (moment - began)

    def _tell(self, run: RunState, loss: float | None, moment: float, *, now: bool) -> None:
        self._marks.append((moment, run.step))
        self._shown = moment
        self._on_progress(run.step, self._tokens_per_second, loss)
        if moment - self._logged >= PROGRESS_EVENT_SECONDS or now:
            self._logged = moment
            self._events.write(
                "progress",
                step=run.step,
                until_step=self._until_step,
                consumed_tokens=run.consumed_tokens,
                tokens_per_second=round(self._tokens_per_second, 1),
                loss=loss if loss is not None and math.isfinite(loss) else None,
                waited_for_data_seconds=round(self._waited_seconds, 3),
                waited_by_cause=_rounded(self._waited_by_cause),
            )


def _rounded(causes: Mapping[str, float]) -> dict[str, float]:
    return {cause: round(seconds, 3) for cause, seconds in causes.items() if seconds >= NOTED_SECONDS}
