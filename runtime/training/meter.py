"""Speed of a run and its waits for data, for people and for the event log."""

import math
import time
from collections.abc import Callable

from runtime.tracking.events import EventLog
from runtime.training.run_state import RunState

PROGRESS_SECONDS = 0.5
"""Least time between two calls of `on_progress`."""
PROGRESS_EVENT_SECONDS = 10.0
STALL_SECONDS = 1.0
"""A wait for data longer than this gets a line of its own in the event log."""


class Meter:
    """Speed and waits, for people and for the event log."""

    def __init__(
        self,
        *,
        until_step: int,
        tokens_per_step: int,
        events: EventLog,
        on_progress: Callable[[int, float, float], None],
    ) -> None:
        self._until_step, self._tokens_per_step = until_step, tokens_per_step
        self._events, self._on_progress = events, on_progress
        self._shown = self._logged = time.monotonic()
        self._shown_step: int | None = None
        self._tokens_per_second = 0.0
        self._waited_seconds = 0.0
        self.loss = math.nan
        """The newest one known."""

    def note_wait(self, step: int, seconds: float) -> None:
        """Before each update: how long it waited for its batch."""
        self._waited_seconds += seconds
        if seconds > STALL_SECONDS:
            self._events.write("stall", step=step, waited_for_data_seconds=round(seconds, 3))

    def tick(self, run: RunState, *, now: bool = False) -> None:
        """After each update; `now` tells the figures even if others were told a moment ago."""
        moment = time.monotonic()
        if self._shown_step is None:  # the first update compiles: no speed to tell from it
            self._shown, self._shown_step = moment, run.step
        elapsed = moment - self._shown
        if elapsed < PROGRESS_SECONDS and not now:
            return
        if run.step > self._shown_step and elapsed > 0:
            self._tokens_per_second = (run.step - self._shown_step) * self._tokens_per_step / elapsed
        self._shown, self._shown_step = moment, run.step
        self._on_progress(run.step, self._tokens_per_second, self.loss)
        if moment - self._logged >= PROGRESS_EVENT_SECONDS or now:
            self._logged = moment
            self._events.write(
                "progress",
                step=run.step,
                until_step=self._until_step,
                consumed_tokens=run.consumed_tokens,
                tokens_per_second=round(self._tokens_per_second, 1),
                loss=self.loss if math.isfinite(self.loss) else None,
                waited_for_data_seconds=round(self._waited_seconds, 3),
            )
