"""Figure checks: the figures of accepted steps against those of the steps before them.

Formulas, sources of the limits and what to do: docs/reference/training.md, "Monitors".
"""

import collections
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from runtime.model.config import ModelConfig
from runtime.optim.skipping import LEAST_DEVIATION
from runtime.tracking.metrics import MetricsRow
from runtime.training.level import Level, recovery, slope
from runtime.training.observer import Monitor

LEVEL_STEPS = 128
"""Steps of a level."""
FEWEST_STEPS = 64
"""Fewest steps of a level that figures are compared with; skip rules of public runs wait for as many."""

SIGMA = 6.0
"""Deviations of a level, and standard errors of a recovering loss."""
LOWER_SIGMA = 3.0
"""Deviations of a low loss below the lowest loss of the level, which itself lies about as far below the median."""
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

FIRST_LOSS_TOLERANCE = 0.5
"""Nats around the first loss of an untrained model, or standard deviations of its logits where one exceeds a nat."""


class Finding(NamedTuple):
    """A figure past its limit in one training step."""

    monitor: Monitor
    figure: float
    limit: float
    facts: Mapping[str, Any]
    factor: float = math.inf
    """How large a spike is; see `monitors.SINGLE_FACTOR`."""


class FirstLoss(NamedTuple):
    """The expected first loss of untrained weights, and the largest plausible distance from it."""

    expected: float
    tolerance: float


def first_loss_of(model: ModelConfig) -> FirstLoss:
    """Return ln(vocab_size) plus half the variance of the logits, in nats: they are normal before training."""
    variance = model.hidden_size * model.initialization.deviation(model.hidden_size) ** 2
    return FirstLoss(math.log(model.vocab_size) + variance / 2, FIRST_LOSS_TOLERANCE * max(1.0, math.sqrt(variance)))


class FigureChecks:
    """The figures of the accepted steps since the last reset of the levels, and the checks of the newest one."""

    def __init__(self, first_loss: FirstLoss | None) -> None:
        self._first_loss = first_loss
        self.num_accepted = 0
        self.recovered_step: int | None = None
        """The step of a spike that the loss has just been found to have recovered from."""
        self._losses: collections.deque[float] = collections.deque(maxlen=CREEP_STEPS)
        self._accepted_rates: collections.deque[float] = collections.deque(maxlen=CREEP_STEPS)
        self._loss = Level(LEVEL_STEPS, num_recent=1)
        self._earlier_loss = Level(LEVEL_STEPS, num_recent=PERSISTENT_STEPS)
        self._grad_norm = Level(LEVEL_STEPS, num_recent=1)  # of the logarithm
        self._update_norm = Level(LEVEL_STEPS, num_recent=UPDATE_NORM_STEPS)  # relative to the learning rate
        self._last_rise = -PERSISTENT_STEPS - LEVEL_STEPS
        """Accepted steps before the newest step with a higher learning rate than its predecessor."""
        self._spikes: collections.deque[tuple[int, int]] = collections.deque()
        """Accepted steps before each spike after which the loss has to recover, and its step."""

    def note_rise(self) -> None:
        """Note that the learning rate of the next step is higher than before."""
        self._last_rise = self.num_accepted

    def note_spike(self, step: int) -> None:
        """Note that the loss has to recover from a spike in the newest step, the number `step` of the run."""
        self._spikes.append((self.num_accepted - 1, step))

    def findings(self, row: MetricsRow) -> Iterator[Finding]:
        """Add an accepted step, and yield what is wrong with it."""
        self._add(row)
        yield from self._check_first_loss(row)
        yield from self._check_grad_norm(row)
        yield from self._check_loss(row)
        yield from self._check_persistent_loss()
        yield from self._check_update_norm(row)
        yield from self._check_recovery()
        yield from self._check_creep(row)

    def _add(self, row: MetricsRow) -> None:
        self.num_accepted += 1
        self.recovered_step = None
        self._losses.append(row.loss)
        self._accepted_rates.append(row.learning_rate)
        self._loss.add(row.loss)
        self._earlier_loss.add(row.loss)
        self._grad_norm.add(math.log(row.grad_norm))
        if row.learning_rate > 0:
            self._update_norm.add(row.update_norm / row.learning_rate)

    def _check_first_loss(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step > 1 or self._first_loss is None:
            return
        expected, tolerance = self._first_loss
        limit = expected + math.copysign(tolerance, row.loss - expected)
        if abs(row.loss - expected) > tolerance:
            yield Finding("first_loss", row.loss, limit, {"expected": expected})

    def _check_grad_norm(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._grad_norm
        if len(level) < FEWEST_STEPS or level.recent[0] <= level.median:
            return
        limit = level.median + max(SIGMA * level.deviation, math.log(LEAST_GRAD_NORM_FACTOR))
        if level.recent[0] > limit:
            factor = row.grad_norm / math.exp(level.median)
            facts = {"factor": factor, "level_steps": len(level)}
            yield Finding("grad_norm", row.grad_norm, math.exp(limit), facts, factor)

    def _check_loss(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._loss
        if len(level) < FEWEST_STEPS:
            return
        median, deviation = level.median, _loss_deviation(level)
        facts = {"median": median, "level_steps": len(level)}
        if row.loss > median + SIGMA * deviation:
            factor = (row.loss - median) / (SIGMA * deviation)
            yield Finding("loss_spike", row.loss, median + SIGMA * deviation, facts, factor)
        # A steep descent is far below its median too, but each of its steps is near the one before.
        limit = min(median - SIGMA * deviation, level.lowest - LOWER_SIGMA * deviation)
        rate_before = self._accepted_rates[-len(level) - 1]
        if row.loss < limit and row.learning_rate >= LOW_LOSS_LEAST_RATE * rate_before:
            yield Finding("low_loss", row.loss, limit, facts)

    def _check_persistent_loss(self) -> Iterator[Finding]:
        level = self._earlier_loss
        num_since_rise = self.num_accepted - self._last_rise
        if len(level) < FEWEST_STEPS or num_since_rise < PERSISTENT_STEPS + LEVEL_STEPS:
            return
        limit = level.median + PERSISTENT_SIGMA * _loss_deviation(level)
        num_above = sum(loss > limit for loss in level.recent)
        if num_above >= PERSISTENT_LEAST:
            figure = sorted(level.recent)[-PERSISTENT_LEAST]
            yield Finding("persistent_loss", figure, limit, {"num_above": num_above, "median": level.median})

    def _check_update_norm(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._update_norm
        if len(level) < FEWEST_STEPS or not row.learning_rate > 0:
            return
        limit = UPDATE_NORM_FACTOR * level.median
        if (lowest := min(level.recent)) > limit:
            yield Finding("update_norm", lowest, limit, {"median": level.median})

    def _check_recovery(self) -> Iterator[Finding]:
        """Check whether the loss is back on its line some time after a spike."""
        num_after = AWAITED_STEPS + RECOVERED_STEPS
        while self._spikes and self.num_accepted - self._spikes[0][0] > num_after:
            num_before, step = self._spikes.popleft()
            if num_before < FITTED_STEPS:
                continue
            losses = np.array(self._losses)[-(FITTED_STEPS + 1 + num_after) :]
            found = recovery(losses, num_before=FITTED_STEPS, num_after=RECOVERED_STEPS, sigma=SIGMA)
            if found.figure > found.highest:
                yield Finding("no_recovery", found.figure, found.highest, {"expected": found.expected, "spike": step})
            else:
                self.recovered_step = step

    def _check_creep(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step % CREEP_EVERY_STEPS or len(self._losses) < CREEP_STEPS:
            return
        if row.learning_rate > self._accepted_rates[0] or self.num_accepted - self._last_rise < CREEP_STEPS:
            return
        rise, error = (CREEP_STEPS * figure for figure in slope(np.array(self._losses)))
        if rise > CREEP_ERRORS * error:
            yield Finding("creep", rise, CREEP_ERRORS * error, {"standard_errors": rise / error})


def _loss_deviation(level: Level) -> float:
    return max(level.deviation, LEAST_DEVIATION * abs(level.median))
