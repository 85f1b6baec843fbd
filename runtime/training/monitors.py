"""Monitors: alarms about figures of a run that look wrong, by the experience of published training runs.

Monitors read the rows of the metrics table on the host and change nothing of the run. A finding depends on the last
`REMEMBERED_STEPS` rows alone, so monitors have no state in checkpoints, and a resumed run raises the alarms of an
undisturbed one. Formulas, sources of the limits and what to do: docs/reference/training.md, "Monitors".
"""

import collections
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from runtime.model.config import ModelConfig
from runtime.optim.skipping import LEAST_DEVIATION
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.training.level import Level, recovery, slope

LEVEL_STEPS = 128
"""Steps of a level."""
FEWEST_STEPS = 64
"""Fewest steps of a level that figures are compared with; skip rules of public runs wait for as many."""
QUIET_STEPS = 128
"""Steps without a finding that end an incident: the level then lies after it. One of creep ends after `CREEP_STEPS`."""

SIGMA = 6.0
"""Deviations of a level, and standard errors of a recovering loss."""
LOWER_SIGMA = 3.0
"""Deviations of a low loss below the lowest of the level, which lies about as far down."""
LOW_LOSS_LEAST_RATE = 0.9
"""Least learning rate of a low loss, relative to the rate a level ago: a loss falls with a quick decay."""
LEAST_GRAD_NORM_FACTOR = 2.0
"""Least factor to the level: the first norms of published spikes were 4, 17 and 20 times the level."""

PERSISTENT_STEPS, PERSISTENT_LEAST, PERSISTENT_SIGMA = 32, 8, 3.0
"""Not checked where the learning rate has risen within these steps or the level before them."""

UPDATE_NORM_FACTOR, UPDATE_NORM_STEPS = 2.0, 20
"""Consecutive steps: a single gradient of any size keeps Adam's update large for up to 17 steps with b2 = 0.999."""

FITTED_STEPS, AWAITED_STEPS, RECOVERED_STEPS = 256, 32, 64
"""Steps before a spike, steps after it as BLOOM's took to recover, and the steps that have to be recovered."""

CREEP_STEPS, CREEP_ERRORS = 1000, 4.0
CREEP_EVERY_STEPS = 50

REMEMBERED_STEPS = 2 * CREEP_STEPS
"""Accepted steps that a finding, and whether it raises an alarm, may depend on."""

FIRST_LOSS_TOLERANCE = 0.5
"""Nats around the first loss of an untrained model, or standard deviations of its logits where one exceeds a nat."""

LEAST_RISE = 1e-9
"""Relative rise of a learning rate; less is rounding."""

SPIKES = ("grad_norm", "loss_spike")
"""Monitors of spikes. After a spike, `no_recovery` watches the loss."""
ISOLATED = ("loss_spike", "low_loss")
"""Monitors of single batches; only first findings cast doubt, since odd batches would prolong an incident for ever."""
WORSE_FACTOR = 10.0
"""Within an incident, a finding this many times farther past its limit than all before raises another alarm."""
CONFIRMED_STEPS = 32
"""A spike of a single step is an event, and an alarm if another follows within these steps: one odd document of a
small batch moves the loss of one step only."""
SINGLE_FACTOR = 10.0
"""A single step is an alarm from this many times the median gradient norm, or the loss limit's distance, on."""


class Alarm(NamedTuple):
    """A monitor's first finding of an incident, or a spike of a single step."""

    monitor: str
    step: int
    figure: float
    limit: float
    message: str


class Finding(NamedTuple):
    """A figure past its limit in one training step, with a sentence about it and what to do."""

    monitor: str
    figure: float
    limit: float
    text: str
    fix: str
    factor: float = math.inf
    """Size of a spike in the unit of `SINGLE_FACTOR`."""


ROLL_BACK = (
    "Training continues. If the loss does not recover, roll back: `rollback PHASE` prints the command that skips these "
    "batches, and `checkpoints PHASE --good` lists the checkpoints to start from."
)
CHECK_DATA = (
    "Training continues. Check the batches for repeated text, a broken source or leaked targets; "
    "`checkpoints PHASE --good` lists the checkpoints from before it."
)
CHECK_INITIALIZATION = (
    "Training continues. Stop it and check the initial weights (model.initialization), the token ids of the first "
    "batch, and that no position sees the token it has to predict; later figures show such a fault less clearly."
)


class FirstLoss(NamedTuple):
    """The expected first loss of untrained weights, and the largest plausible distance from it."""

    expected: float
    tolerance: float


def first_loss_of(model: ModelConfig) -> FirstLoss:
    """Return ln(vocab_size) plus half the variance of the logits, in nats: they are normal before training."""
    variance = model.hidden_size * model.initialization.deviation(model.hidden_size) ** 2
    return FirstLoss(math.log(model.vocab_size) + variance / 2, FIRST_LOSS_TOLERANCE * max(1.0, math.sqrt(variance)))


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
        self._num_accepted = 0
        self._losses: collections.deque[float] = collections.deque(maxlen=CREEP_STEPS)
        self._accepted_rates: collections.deque[float] = collections.deque(maxlen=CREEP_STEPS)
        self._loss = Level(LEVEL_STEPS, num_recent=1)
        self._earlier_loss = Level(LEVEL_STEPS, num_recent=PERSISTENT_STEPS)
        self._grad_norm = Level(LEVEL_STEPS, num_recent=1)  # of the logarithm
        self._update_norm = Level(LEVEL_STEPS, num_recent=UPDATE_NORM_STEPS)  # relative to the learning rate
        self._recent: dict[str, collections.deque[tuple[int, float, bool]]] = {}
        """Findings of the incident of each monitor: the number of accepted steps, the distance past the limit, and
        whether the incident has raised an alarm."""
        self._last_rise = -PERSISTENT_STEPS - LEVEL_STEPS
        """Accepted steps before the newest step with a higher learning rate than its predecessor."""
        self._spike_steps: collections.deque[int] = collections.deque(maxlen=2)
        """Numbers of accepted steps at the newest two steps with spikes."""
        self._spikes: collections.deque[tuple[int, int]] = collections.deque()
        """The number of accepted steps before each spike that `no_recovery` watches, and the step of the spike."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether an incident lasts, so that the newest steps do not prove the state before them good."""
        return self._num_quiet < QUIET_STEPS

    def observe(self, row: MetricsRow) -> list[Alarm]:
        """Add the next step, and return its alarms."""
        self.single_spikes, self.recovered_step = [], None
        is_rising = self._rate is not None and row.learning_rate > self._rate * (1 + LEAST_RISE)
        # A straight rise is no finding; its first step bends the curve.
        if self._resets_at(row.step - 1) or (is_rising and not self._was_rising):
            self._reset()
        self._rate, self._was_rising = row.learning_rate, is_rising
        if is_rising:
            self._last_rise = self._num_accepted
        if not _is_accepted(row):
            return []
        self._add(row)
        self._num_quiet += 1
        alarms: list[Alarm] = []
        has_begun = False
        for found in self._findings(row):
            is_new, is_alarm = self._judge(found)
            has_begun |= is_new and found.monitor in SPIKES
            if is_new or is_alarm:
                message = f"step {row.step}: {found.text}; the limit is {found.limit:.4g}. {found.fix}"
                alarm = Alarm(found.monitor, row.step, found.figure, found.limit, message)
                (alarms if is_alarm else self.single_spikes).append(alarm)
        if self.is_in_doubt:
            self.last_doubted_step = row.step
        if has_begun:
            self._spikes.append((self._num_accepted - 1, row.step))
        return alarms

    def _judge(self, found: Finding) -> tuple[bool, bool]:
        """Add a finding to its incident; return whether it is the first or a much worse one, and whether it alarms.

        The two differ for a spike of a single step, which alarms when another one follows.
        """
        quiet_steps = CREEP_STEPS if found.monitor == "creep" else QUIET_STEPS
        recent = self._recent.setdefault(found.monitor, collections.deque())
        while recent and self._num_accepted - recent[0][0] > quiet_steps:
            recent.popleft()
        distance = abs(found.figure - found.limit)
        is_new = all(distance > WORSE_FACTOR * before for _, before, _ in recent)
        is_alarm = all(distance > WORSE_FACTOR * before for _, before, has_alarmed in recent if has_alarmed)
        if is_alarm and found.monitor in SPIKES:
            is_alarm = found.factor >= SINGLE_FACTOR or self._is_confirmed()
        recent.append((self._num_accepted, distance, is_alarm or any(has_alarmed for *_, has_alarmed in recent)))
        if found.monitor in SPIKES and self._num_accepted not in self._spike_steps:
            self._spike_steps.append(self._num_accepted)
        if is_new or found.monitor not in ISOLATED:
            self._num_quiet = 0
        return is_new, is_alarm

    def _is_confirmed(self) -> bool:
        """Return whether one of the last steps before this step was a spike, too."""
        return any(0 < self._num_accepted - earlier <= CONFIRMED_STEPS for earlier in self._spike_steps)

    def _add(self, row: MetricsRow) -> None:
        self._num_accepted += 1
        self._losses.append(row.loss)
        self._accepted_rates.append(row.learning_rate)
        self._loss.add(row.loss)
        self._earlier_loss.add(row.loss)
        self._grad_norm.add(math.log(row.grad_norm))
        if row.learning_rate > 0:
            self._update_norm.add(row.update_norm / row.learning_rate)

    def _findings(self, row: MetricsRow) -> Iterator[Finding]:
        yield from self._check_first_loss(row)
        yield from self._check_grad_norm(row)
        yield from self._check_loss(row)
        yield from self._check_persistent_loss()
        yield from self._check_update_norm(row)
        yield from self._check_recovery()
        yield from self._check_creep(row)

    def _check_first_loss(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step > 1 or self._first_loss is None:
            return
        expected, tolerance = self._first_loss
        limit = expected + math.copysign(tolerance, row.loss - expected)
        if abs(row.loss - expected) > tolerance:
            text = f"the first loss is {row.loss:.4g}; an untrained model has {expected:.4g}"
            yield Finding("first_loss", row.loss, limit, text, CHECK_INITIALIZATION)

    def _check_grad_norm(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._grad_norm
        if len(level) < FEWEST_STEPS or level.recent[0] <= level.median:
            return
        limit = level.median + max(SIGMA * level.deviation, math.log(LEAST_GRAD_NORM_FACTOR))
        if level.recent[0] > limit:
            text = (
                f"the gradient norm is {row.grad_norm:.4g}, {row.grad_norm / math.exp(level.median):.3g} times its "
                f"median over the last {len(level)} steps"
            )
            fix, factor = f"The loss may follow. {ROLL_BACK}", row.grad_norm / math.exp(level.median)
            yield Finding("grad_norm", row.grad_norm, math.exp(limit), text, fix, factor)

    def _check_loss(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._loss
        if len(level) < FEWEST_STEPS:
            return
        median, deviation = level.median, _loss_deviation(level)
        of_level = f"its median over the last {len(level)} steps is {median:.4g}"
        if row.loss > median + SIGMA * deviation:
            text = f"the loss is {row.loss:.4g}; {of_level}"
            factor = (row.loss - median) / (SIGMA * deviation)
            yield Finding("loss_spike", row.loss, median + SIGMA * deviation, text, ROLL_BACK, factor)
        # A steep descent is far below its median too, but each of its steps is near the one before.
        limit = min(median - SIGMA * deviation, level.lowest - LOWER_SIGMA * deviation)
        rate_before = self._accepted_rates[-len(level) - 1]
        if row.loss < limit and row.learning_rate >= LOW_LOSS_LEAST_RATE * rate_before:
            text = f"the loss is suspiciously low: {row.loss:.4g}; {of_level}"
            yield Finding("low_loss", row.loss, limit, text, CHECK_DATA)

    def _check_persistent_loss(self) -> Iterator[Finding]:
        level = self._earlier_loss
        num_since_rise = self._num_accepted - self._last_rise
        if len(level) < FEWEST_STEPS or num_since_rise < PERSISTENT_STEPS + LEVEL_STEPS:
            return
        limit = level.median + PERSISTENT_SIGMA * _loss_deviation(level)
        num_above = sum(loss > limit for loss in level.recent)
        if num_above >= PERSISTENT_LEAST:
            figure = sorted(level.recent)[-PERSISTENT_LEAST]
            text = (
                f"the loss stays high: {num_above} of the last {PERSISTENT_STEPS} steps were above {limit:.4g}, "
                f"{PERSISTENT_LEAST} reached {figure:.4g}, and the median before them is {level.median:.4g}"
            )
            yield Finding("persistent_loss", figure, limit, text, ROLL_BACK)

    def _check_update_norm(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._update_norm
        if len(level) < FEWEST_STEPS or not row.learning_rate > 0:
            return
        limit = UPDATE_NORM_FACTOR * level.median
        if (lowest := min(level.recent)) > limit:
            text = (
                f"the norm of the update relative to the learning rate was at least {lowest:.4g} in the last "
                f"{UPDATE_NORM_STEPS} steps, more than twice its median of {level.median:.4g} before them"
            )
            yield Finding("update_norm", lowest, limit, text, f"The loss may follow. {ROLL_BACK}")

    def _check_recovery(self) -> Iterator[Finding]:
        """Check whether the loss is back on its line some time after a spike."""
        num_after = AWAITED_STEPS + RECOVERED_STEPS
        while self._spikes and self._num_accepted - self._spikes[0][0] > num_after:
            num_before, step = self._spikes.popleft()
            if num_before < FITTED_STEPS:
                continue
            losses = np.array(self._losses)[-(FITTED_STEPS + 1 + num_after) :]
            found = recovery(losses, num_before=FITTED_STEPS, num_after=RECOVERED_STEPS, sigma=SIGMA)
            if found.figure > found.highest:
                text = (
                    f"the loss has not recovered from the spike {num_after} steps ago: its median over the last "
                    f"{RECOVERED_STEPS} steps is {found.figure:.5g}, and {found.expected:.5g} was expected"
                )
                yield Finding("no_recovery", found.figure, found.highest, text, ROLL_BACK)
            else:
                self.recovered_step = step

    def _check_creep(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step % CREEP_EVERY_STEPS or len(self._losses) < CREEP_STEPS:
            return
        if row.learning_rate > self._accepted_rates[0] or self._num_accepted - self._last_rise < CREEP_STEPS:
            return
        rise, error = (CREEP_STEPS * figure for figure in slope(np.array(self._losses)))
        if rise > CREEP_ERRORS * error:
            text = (
                f"the loss rises without the learning rate: by {rise:.3g} over the last {CREEP_STEPS} steps, "
                f"{rise / error:.1f} standard errors"
            )
            fix = f"If the log-normaliser grows with it, set z_loss. {ROLL_BACK}"
            yield Finding("creep", rise, CREEP_ERRORS * error, text, fix)


def _is_accepted(row: MetricsRow) -> bool:
    """Return whether a step enters a level; a gradient of norm 0 has no logarithm."""
    figures = (row.loss, row.grad_norm, row.update_norm)
    return not row.is_skipped and all(map(math.isfinite, figures)) and row.grad_norm > 0


def _loss_deviation(level: Level) -> float:
    return max(level.deviation, LEAST_DEVIATION * abs(level.median))
