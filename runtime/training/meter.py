"""Speed of a run and its waits for data, for people and for the event log."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runtime.data.prefetch import Prefetch
from runtime.tracking.events import EventLog
from runtime.training.run_state import RunState

PROGRESS_SECONDS = 0.5
"""Least time between two calls of `on_progress`."""
PROGRESS_EVENT_SECONDS = 10.0
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
        self._shown = self._logged = time.monotonic()
        self._shown_step: int | None = None
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
        """Time in which no update is taken: it does not count against the speed."""
        began = time.monotonic()
        yield
        self._shown += time.monotonic() - began

    def tick(self, run: RunState, loss: float | None, *, now: bool = False) -> None:
        """After each update, with the newest loss known; `now` tells the figures even if others just were."""
        moment = time.monotonic()
        if self._shown_step is None:  # the first update compiles: no speed to tell from it
            self._shown, self._shown_step = moment, run.step
        elapsed = moment - self._shown
        if elapsed < PROGRESS_SECONDS and not now:
            return
        if run.step > self._shown_step and elapsed > 0:
            self._tokens_per_second = (run.step - self._shown_step) * self._tokens_per_step / elapsed
        self._shown, self._shown_step = moment, run.step
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
