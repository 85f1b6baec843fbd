"""Speed of a run and its waits for data, for people and for the event log."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runtime.data.prefetch import Prefetch
from runtime.tracking.events import EventLog

PROGRESS_SECONDS = 0.5
"""Least time between two calls of `on_progress`."""
PROGRESS_EVENT_SECONDS = 10.0
SPEED_SECONDS = 10.0
"""The speed that is told is that of so long before, since figures of several updates come at once."""
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
        self._marks: deque[tuple[float, int]] = deque()
        """When which step had ended, of the last `SPEED_SECONDS`."""
        self._is_warm = False
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

    def tick(self, step: int, consumed_tokens: int, loss: float | None, *, now: bool = False) -> None:
        """After each update, of the last one that has ended; `now` tells the figures even if others just were.

        Args:
            step: finished updates, as far as anybody knows.
            consumed_tokens: of these.
            loss: of the last of them; None if this attempt has none yet.
        """
        moment = time.monotonic() - self._left_out_seconds
        if not self._marks:  # the first update is compiled
            self._shown = moment
            self._marks.append((moment, step))
        elif not self._is_warm and step > self._marks[0][1]:
            # A GPU assembles kernels before it runs them for the first time: no later speed is to have that in it.
            self._measure(moment, step)
            self._marks.clear()
            self._marks.append((moment, step))
            self._is_warm = True
        if now or moment - self._shown >= PROGRESS_SECONDS:
            self._measure(moment, step)
            self._tell(step, consumed_tokens, loss, moment, now=now)

    def _measure(self, moment: float, step: int) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= moment - SPEED_SECONDS:
            self._marks.popleft()
        began, first_step = self._marks[0]
        if step > first_step and moment > began:
            self._tokens_per_second = (step - first_step) * self._tokens_per_step / (moment - began)

    def _tell(self, step: int, consumed_tokens: int, loss: float | None, moment: float, *, now: bool) -> None:
        self._marks.append((moment, step))
        self._shown = moment
        self._on_progress(step, self._tokens_per_second, loss)
        if moment - self._logged >= PROGRESS_EVENT_SECONDS or now:
            self._logged = moment
            self._events.write(
                "progress",
                step=step,
                until_step=self._until_step,
                consumed_tokens=consumed_tokens,
                tokens_per_second=round(self._tokens_per_second, 1),
                loss=loss if loss is not None and math.isfinite(loss) else None,
                waited_for_data_seconds=round(self._waited_seconds, 3),
                waited_by_cause=_rounded(self._waited_by_cause),
            )


def _rounded(causes: Mapping[str, float]) -> dict[str, float]:
    return {cause: round(seconds, 3) for cause, seconds in causes.items() if seconds >= NOTED_SECONDS}
