"""Monitors: alarms about figures of a run that look wrong, by the experience of published training runs.

Monitors read the rows of the metrics table on the host and change nothing of the run. A finding depends on the last
`REMEMBERED_STEPS` rows alone, so monitors have no state in checkpoints, and a resumed run raises the alarms of an
undisturbed one.
"""

import math
from collections.abc import Callable

from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.training.alarm import Alarm
from runtime.training.figure_checks import CREEP_STEPS, FigureChecks, FirstLoss
from runtime.training.incidents import ISOLATED, QUIET_STEPS, SPIKES, Incidents

REMEMBERED_STEPS = 2 * CREEP_STEPS
"""Accepted steps that a finding, and whether it raises an alarm, may depend on."""

LEAST_RISE = 1e-9
"""Relative rise of a learning rate; less is rounding."""


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
