"""Incidents: findings of a monitor that follow each other, of which the first and much worse ones raise alarms."""

import collections
from typing import NamedTuple

from runtime.training.figure_checks import CREEP_STEPS, Finding

QUIET_STEPS = 128
"""Steps without a finding that end an incident: the level then lies after it. One of creep ends after `CREEP_STEPS`."""


SPIKES = ("grad_norm", "loss_spike")
"""Monitors of spikes, after which the loss has to recover."""
ISOLATED = ("loss_spike", "low_loss")
"""Monitors of single batches, whose first findings alone cast doubt: odd batches would prolong an incident for ever."""
WORSE_FACTOR = 10.0
"""Within an incident, a finding this many times farther past its limit than all before raises another alarm."""
CONFIRMED_STEPS = 32
"""A spike of a single step is an event, and an alarm once another follows within these steps: one odd document of a
small batch moves the loss, and the next step is as before."""
SINGLE_FACTOR = 10.0
"""A single step alarms from this many times the median gradient norm, or the distance of the loss's limit, on."""


class Verdict(NamedTuple):
    """A finding's part in its incident; the two differ for a spike of a single step, until another one follows."""

    is_new: bool
    """It is the first of its incident, or much worse than all before."""
    is_alarm: bool


class Incidents:
    """The incidents of all monitors since the last reset of the levels."""

    def __init__(self) -> None:
        self._recent: dict[str, collections.deque[tuple[int, float, bool]]] = {}
        """Findings of the incident of each monitor: the number of accepted steps, the distance past the limit, and
        whether the incident has raised an alarm."""
        self._spike_steps: collections.deque[int] = collections.deque(maxlen=2)
        """Numbers of accepted steps at the newest two steps with spikes."""

    def add(self, found: Finding, num_accepted: int) -> Verdict:
        """Add a finding in the accepted step of this number to its incident."""
        quiet_steps = CREEP_STEPS if found.monitor == "creep" else QUIET_STEPS
        recent = self._recent.setdefault(found.monitor, collections.deque())
        while recent and num_accepted - recent[0][0] > quiet_steps:
            recent.popleft()
        distance = abs(found.figure - found.limit)
        is_new = all(distance > WORSE_FACTOR * before for _, before, _ in recent)
        is_alarm = all(distance > WORSE_FACTOR * before for _, before, has_alarmed in recent if has_alarmed)
        if is_alarm and found.monitor in SPIKES:
            is_alarm = found.factor >= SINGLE_FACTOR or self._is_confirmed(num_accepted)
        recent.append((num_accepted, distance, is_alarm or any(has_alarmed for *_, has_alarmed in recent)))
        if found.monitor in SPIKES and num_accepted not in self._spike_steps:
            self._spike_steps.append(num_accepted)
        return Verdict(is_new, is_alarm)

    def _is_confirmed(self, num_accepted: int) -> bool:
        """Return whether an earlier step shortly before this one was a spike, too."""
        return any(0 < num_accepted - earlier <= CONFIRMED_STEPS for earlier in self._spike_steps)
