"""Monitors: alarms about figures of a run that look wrong, by the experience of published training runs.

Monitors read the rows of the metrics table on the host and change nothing of the run. A finding depends on the last
`REMEMBERED_STEPS` rows alone, so monitors have no state in checkpoints, and a resumed run raises the alarms of an
undisturbed one.
"""

import collections
import math
from collections.abc import Callable
from typing import NamedTuple

from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.training.figure_checks import CREEP_STEPS, FigureChecks, Finding, FirstLoss
from runtime.training.observer import Alarm

REMEMBERED_STEPS = 2 * CREEP_STEPS
"""Accepted steps that a finding, and whether it raises an alarm, may depend on."""

LEAST_RISE = 1e-9
"""Relative rise of a learning rate; less is rounding."""
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
"""A spike of a single step is an alarm if it is this many times the median gradient norm, or this many times as far
from the loss's level as the limit."""


def never(step: int) -> bool:
    return False


class Monitors:
    """Follows the training steps of a run, one after the other.

    Skipped steps and steps with figures that are not finite enter no level. All levels reset where the level is meant
    to change: at `resets_at(finished steps)`, and where the learning rate starts to rise. An incident outlasts a reset.
    """

    def __init__(self, resets_at: Callable[[int], bool] = never, *, first_loss: FirstLoss | None = None) -> None:
        """Take the expected `first_loss` of a run from scratch; None for trained weights."""
        self._resets_at = resets_at
        self._first_loss = first_loss
        self._rate: float | None = None
        self._was_rising = False
        self._num_quiet = QUIET_STEPS
        """Accepted steps since the last finding of any monitor."""
        self.last_doubted_step = 0
        """The newest step in doubt."""
        self.single_spikes: list[Alarm] = []
        """Spikes of the newest step that raised no alarm."""
        self.recovered_step: int | None = None
        """The step of the spike from which the loss has just recovered."""
        self._reset()

    @classmethod
    def resumed(
        cls, metrics: MetricsTable, resets_at: Callable[[int], bool] = never, *, first_loss: FirstLoss | None = None
    ) -> "Monitors":
        """Return monitors after the last row of a table, as if they had followed all of it."""
        monitors = cls(resets_at, first_loss=first_loss)
        begin, num_accepted = len(metrics), 0
        while begin and num_accepted < REMEMBERED_STEPS:
            begin -= 1
            num_accepted += _is_accepted(metrics[begin])
        for index in range(begin, len(metrics)):
            monitors.observe(metrics[index])
        return monitors

    def _reset(self) -> None:
        self._checks, self._incidents = FigureChecks(self._first_loss), Incidents()

    @property
    def is_in_doubt(self) -> bool:
        """Whether an incident lasts, so that the newest steps do not prove the state before them good."""
        return self._num_quiet < QUIET_STEPS

    def observe(self, row: MetricsRow) -> list[Alarm]:
        self.single_spikes, self.recovered_step = [], None
        is_rising = self._rate is not None and row.learning_rate > self._rate * (1 + LEAST_RISE)
        # A straight rise is no finding; its first step bends the curve.
        if self._resets_at(row.step - 1) or (is_rising and not self._was_rising):
            self._reset()
        self._rate, self._was_rising = row.learning_rate, is_rising
        if is_rising:
            self._checks.note_rise()
        return self._judge(row) if _is_accepted(row) else []

    def _judge(self, row: MetricsRow) -> list[Alarm]:
        self._num_quiet += 1
        alarms: list[Alarm] = []
        has_begun = False
        for found in self._checks.findings(row):
            is_new, is_alarm = self._incidents.add(found, self._checks.num_accepted)
            if is_new or found.monitor not in ISOLATED:
                self._num_quiet = 0
            has_begun |= is_new and found.monitor in SPIKES
            if is_new or is_alarm:
                alarm = Alarm(found.monitor, row.step, found.figure, found.limit, found.facts)
                (alarms if is_alarm else self.single_spikes).append(alarm)
        if self.is_in_doubt:
            self.last_doubted_step = row.step
        if has_begun:
            self._checks.note_spike(row.step)
        self.recovered_step = self._checks.recovered_step
        return alarms


def _is_accepted(row: MetricsRow) -> bool:
    """Return whether a step enters a level; a gradient of norm 0 has no logarithm."""
    figures = (row.loss, row.grad_norm, row.update_norm)
    return not row.is_skipped and all(map(math.isfinite, figures)) and row.grad_norm > 0


class FindingVerdict(NamedTuple):
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

    def add(self, found: Finding, num_accepted: int) -> FindingVerdict:
        """Add a finding to its incident; `num_accepted` counts the accepted steps so far."""
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
        return FindingVerdict(is_new, is_alarm)

    def _is_confirmed(self, num_accepted: int) -> bool:
        """Return whether a step shortly before this one also had a spike."""
        return any(0 < num_accepted - earlier <= CONFIRMED_STEPS for earlier in self._spike_steps)
