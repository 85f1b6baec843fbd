"""Preemption: a warning when a save may not fit into the notice that a scheduler gives before it kills."""

import math
from collections.abc import Callable

from runtime.tracking.events import EventLog

SLOW_SAVE = "slow_save"
"""The event of a save that may not fit."""
SAVES_IN_A_NOTICE = 2
"""The notice may come just after a save began: the stop waits for that save and makes another."""
WARN_AGAIN_FACTOR = 2.0
"""Warn again when a save takes this many times longer than the last one warned about."""


class Preemption:
    """Compares the duration of each save with the notice; slow storage stays slow, so it warns once."""

    def __init__(self, notice_seconds: float | None, events: EventLog, warn: Callable[[str], None]) -> None:
        """`notice_seconds` None means unknown, and no save is warned about; `warn` takes the text for the user."""
        if notice_seconds is not None and not notice_seconds > 0:
            raise ValueError(f"notice_seconds is {notice_seconds}; pass what the scheduler gives, or None.")
        self._notice_seconds, self._events, self._warn = notice_seconds, events, warn
        self._warned_seconds = 0.0

    def note_save(self, step: int, *, seconds: float, size_in_bytes: int) -> None:
        """Note a save that took `seconds` from the copy of the state to its last byte."""
        notice = self._notice_seconds
        if notice is None or seconds <= max(notice / SAVES_IN_A_NOTICE, WARN_AGAIN_FACTOR * self._warned_seconds):
            return
        self._warned_seconds = seconds
        needed = 60 * math.ceil(SAVES_IN_A_NOTICE * seconds / 60)
        self._events.write(
            SLOW_SAVE, step=step, save_seconds=round(seconds, 3), notice_seconds=notice, needed_seconds=needed
        )
        self._warn(
            f"step {step:,}: saving {size_in_bytes / 1e9:.3g} GB took {seconds:.3g} s, and the scheduler kills "
            f"{notice:g} s after its notice. A stop needs time for two saves; otherwise the training steps after the "
            f"last save are lost. Ask the scheduler for {needed} s (Slurm: --signal=B:USR2@{needed}) and pass "
            f"--notice {needed}, or make saving faster with more hosts or faster storage"
        )
