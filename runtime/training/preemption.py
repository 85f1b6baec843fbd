"""Preemption: whether a save fits into the notice that a scheduler gives before it kills."""

import logging
import math
from collections.abc import Callable

from runtime.tracking.events import EventLog

SLOW_SAVE = "slow_save"
"""The event of a save that may not fit."""
SAVES_IN_A_NOTICE = 2
"""A notice may come when a save has just begun: that one is waited for, and the stop makes another."""
TOLD_AGAIN = 2.0
"""A save that takes so many times as long as the one that was told is told, too."""

logger = logging.getLogger(__name__)


def warn(text: str) -> None:
    """In the log."""
    logger.warning("%s", text)


class Preemption:
    """Holds the time that each save takes against the notice.

    What makes a save slow does not pass (147 GB in Marlin, of a notice of 600 s), so that one of them is told, and not
    all.
    """

    def __init__(self, notice_seconds: float | None, events: EventLog, remark: Callable[[str], None] = warn) -> None:
        """`notice_seconds` None is not known: nothing is said. `remark` takes what is said to people."""
        if notice_seconds is not None and not notice_seconds > 0:
            raise ValueError(f"notice_seconds is {notice_seconds}; pass what the scheduler gives, or None.")
        self._notice_seconds, self._events, self._remark = notice_seconds, events, remark
        self._told_seconds = 0.0

    def note_save(self, step: int, *, seconds: float, size_in_bytes: int) -> None:
        """After each save: how long it took from the copy of the state to its last byte, and how large it is."""
        notice = self._notice_seconds
        if notice is None or seconds <= max(notice / SAVES_IN_A_NOTICE, TOLD_AGAIN * self._told_seconds):
            return
        self._told_seconds = seconds
        needed = 60 * math.ceil(SAVES_IN_A_NOTICE * seconds / 60)
        self._events.write(
            SLOW_SAVE, step=step, save_seconds=round(seconds, 3), notice_seconds=notice, needed_seconds=needed
        )
        self._remark(
            f"step {step:,}: saving {size_in_bytes / 1e9:.3g} GB took {seconds:.3g} s, and the notice before a kill is "
            f"{notice:g} s: a stop may have to wait for one save and make another, which may not fit, and what is "
            f"younger than the last save is then lost. Have the scheduler give {needed} s (Slurm: "
            f"--signal=B:USR2@{needed}) and say --notice {needed}, or make saving faster: more hosts, faster storage"
        )
