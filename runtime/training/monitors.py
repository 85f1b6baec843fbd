"""Monitors: what looks wrong in the figures of a run is said at once, by everything that public retrospectives teach.

They read the rows of the metrics table, on the host, and change nothing: no bit of a run depends on them. What they
find is a function of the last `REMEMBERED_UPDATES` rows alone, so they have no state in checkpoints, and a resumed run
says what an undisturbed one would have. Formulas, sources of the limits and what to do: docs/training.md, "Monitors".
"""

import collections
import logging
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from runtime.optim.skipping import LEAST_DEVIATION
from runtime.tracking.events import EventLog
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.training.level import NORMAL_DEVIATION, Level

logger = logging.getLogger(__name__)

LEVEL_UPDATES = 128
"""Updates that a level is taken over."""
FEWEST_UPDATES = 64
"""Of a level that something is held against; as many as a skip rule of public runs waits for."""
QUIET_UPDATES = 128
"""In a row without a finding end an incident: the level is wholly one of updates after it then."""

SIGMA = 6.0
LEAST_GRAD_NORM_FACTOR = 2.0
"""Times the level: the first alarming norms of published spikes were at 4, 17 and 20 times it, and those of a laptop's
batches of four sequences reach 1.5 times with nothing wrong."""

PERSISTENT_UPDATES, PERSISTENT_LEAST, PERSISTENT_SIGMA = 32, 8, 3.0

UPDATE_NORM_FACTOR, UPDATE_NORM_UPDATES = 2.0, 8
"""So many updates in a row. Adam makes one gradient, however large, no more than 7 such updates (b2 = 0.999), and none
at b2 = 0.95; see docs/training.md."""

FITTED_UPDATES, AWAITED_UPDATES, RECOVERED_UPDATES = 256, 32, 64
"""Before a spike; after it, as many as BLOOM's took to come back; and those that are to have come back."""
RECOVERY_ERRORS = 6.0

CREEP_UPDATES, CREEP_ERRORS = 1000, 4.0
CREEP_EVERY_STEPS = 50

REMEMBERED_UPDATES = CREEP_UPDATES + QUIET_UPDATES
"""Accepted updates that a finding, and whether it is said, may depend on; the others reach less far back."""

LEAST_RISE = 1e-9
"""Of a learning rate: less is rounding."""

SPIKES = ("grad_norm", "loss_spike")
"""Monitors behind whose alarms the loss is to come back."""


class Alarm(NamedTuple):
    """A monitor's first finding of an incident."""

    monitor: str
    step: int
    figure: float
    limit: float
    message: str


class Finding(NamedTuple):
    """A figure past its limit, in one update; `said` is the sentence about it, `cure` what to do."""

    monitor: str
    figure: float
    limit: float
    said: str
    cure: str


GO_BACK = (
    "Nothing was stopped or changed. If it does not come back, go back: `certified` with the name of the phase lists "
    "the checkpoints to go on from; take one that is 100 updates older than this at least."
)
LOOK_AT_DATA = (
    "Nothing was stopped or changed. Look at what was drawn (text that repeats, a broken source, targets that leak); "
    "`certified` with the name of the phase lists the checkpoints from before it."
)


def never(step: int) -> bool:
    """Of a run whose level is never meant to change."""
    return False


class Monitors:
    """Follows the updates of a run, one after the other.

    An update that was left out, or whose figures are not finite, enters nothing. Everything is forgotten where the
    level is meant to change: where `begins_anew_at` says so, of the number of updates finished before, and where the
    learning rate begins to rise, at once or over many updates. An incident goes on there: what was in doubt stays so.
    """

    def __init__(self, begins_anew_at: Callable[[int], bool] = never) -> None:
        self._begins_anew_at = begins_anew_at
        self._rates: collections.deque[float] = collections.deque(maxlen=2)
        self._num_quiet = QUIET_UPDATES
        """Accepted updates since the last finding of any monitor; it outlasts a level."""
        self._begin_anew()

    @classmethod
    def resumed(cls, metrics: MetricsTable, begins_anew_at: Callable[[int], bool] = never) -> "Monitors":
        """Behind the last row of a table, as if they had followed all of it."""
        monitors = cls(begins_anew_at)
        begin, num_accepted = len(metrics), 0
        while begin and num_accepted < REMEMBERED_UPDATES:
            begin -= 1
            num_accepted += _is_accepted(metrics[begin])
        for index in range(max(begin - 2, 0), begin):
            monitors._rates.append(metrics[index].learning_rate)
        for index in range(begin, len(metrics)):
            monitors.observe(metrics[index])
        return monitors

    def _begin_anew(self) -> None:
        self._num_accepted = 0
        self._losses: collections.deque[float] = collections.deque(maxlen=CREEP_UPDATES)
        self._accepted_rates: collections.deque[float] = collections.deque(maxlen=CREEP_UPDATES)
        self._loss = Level(LEVEL_UPDATES, num_recent=1)
        self._earlier_loss = Level(LEVEL_UPDATES, num_recent=PERSISTENT_UPDATES)
        self._grad_norm = Level(LEVEL_UPDATES, num_recent=1)  # of the logarithm
        self._update_norm = Level(LEVEL_UPDATES, num_recent=UPDATE_NORM_UPDATES)  # over the learning rate
        self._last_found: dict[str, int] = {}
        """By monitor, the number of accepted updates at its newest finding."""
        self._spikes: collections.deque[int] = collections.deque()
        """The numbers of accepted updates before alarms behind which the loss has yet to be looked at."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether an incident lasts: the newest updates are no witness of the state before them."""
        return self._num_quiet < QUIET_UPDATES

    def observe(self, row: MetricsRow) -> list[Alarm]:
        """The alarms of the update that follows the last one."""
        if self._begins_anew_at(row.step - 1) or self._begins_to_rise(row.learning_rate):
            self._begin_anew()
        self._rates.append(row.learning_rate)
        if not _is_accepted(row):
            return []
        self._add(row)
        self._num_quiet += 1
        alarms = []
        for found in self._findings(row):
            last = self._last_found.get(found.monitor)
            if last is None or self._num_accepted - last > QUIET_UPDATES:
                message = f"step {row.step}: {found.said}, past the limit of {found.limit:.4g}. {found.cure}"
                alarms.append(Alarm(found.monitor, row.step, found.figure, found.limit, message))
            self._last_found[found.monitor] = self._num_accepted
            self._num_quiet = 0
        if any(alarm.monitor in SPIKES for alarm in alarms):
            self._spikes.append(self._num_accepted - 1)
        return alarms

    def _begins_to_rise(self, rate: float) -> bool:
        """A rate that has risen before goes on, and a straight line is no finding; where it begins there is a bend."""
        if len(self._rates) < 2:
            return False
        earlier, last = self._rates
        return rate > last * (1 + LEAST_RISE) and not last > earlier * (1 + LEAST_RISE)

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
        yield from self._of_grad_norm(row)
        yield from self._of_loss(row)
        yield from self._of_persistent_loss()
        yield from self._of_update_norm(row)
        yield from self._of_recovery()
        yield from self._of_creep(row)

    def _of_grad_norm(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._grad_norm
        if len(level) < FEWEST_UPDATES or level.recent[0] <= level.median:
            return
        limit = level.median + max(SIGMA * level.deviation, math.log(LEAST_GRAD_NORM_FACTOR))
        if level.recent[0] > limit:
            said = (
                f"the gradient norm is {row.grad_norm:.4g}, {row.grad_norm / math.exp(level.median):.3g} times its "
                f"median over the last {len(level)} updates"
            )
            yield Finding("grad_norm", row.grad_norm, math.exp(limit), said, f"The loss may follow. {GO_BACK}")

    def _of_loss(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._loss
        if len(level) < FEWEST_UPDATES:
            return
        median, deviation = level.median, _loss_deviation(level)
        of_level = f"and its median over the last {len(level)} updates {median:.4g}"
        if row.loss > median + SIGMA * deviation:
            said = f"the loss is {row.loss:.4g}, {of_level}"
            yield Finding("loss_spike", row.loss, median + SIGMA * deviation, said, GO_BACK)
        # A steep descent is far below its median too, but each of its updates is near the one before.
        limit = min(median - SIGMA * deviation, level.lowest - deviation)
        if row.loss < limit:
            said = f"the loss is suspiciously low: {row.loss:.4g}, {of_level}"
            yield Finding("low_loss", row.loss, limit, said, LOOK_AT_DATA)

    def _of_persistent_loss(self) -> Iterator[Finding]:
        level = self._earlier_loss
        if len(level) < FEWEST_UPDATES:
            return
        limit = level.median + PERSISTENT_SIGMA * _loss_deviation(level)
        num_above = sum(loss > limit for loss in level.recent)
        if num_above >= PERSISTENT_LEAST:
            # The figure is the loss that as many updates have reached.
            figure = sorted(level.recent)[-PERSISTENT_LEAST]
            said = (
                f"the loss stays high: in {num_above} of the last {PERSISTENT_UPDATES} updates it was above "
                f"{limit:.4g}, in {PERSISTENT_LEAST} it was {figure:.4g} or more, with a median of {level.median:.4g} "
                "before them"
            )
            yield Finding("persistent_loss", figure, limit, said, GO_BACK)

    def _of_update_norm(self, row: MetricsRow) -> Iterator[Finding]:
        level = self._update_norm
        if len(level) < FEWEST_UPDATES or not row.learning_rate > 0:
            return
        limit = UPDATE_NORM_FACTOR * level.median
        if (lowest := min(level.recent)) > limit:
            said = (
                f"the norm of updates over the learning rate was {lowest:.4g} or more in the last "
                f"{UPDATE_NORM_UPDATES} updates, more than twice its median of {level.median:.4g} before them"
            )
            yield Finding("update_norm", lowest, limit, said, f"The loss may follow. {GO_BACK}")

    def _of_recovery(self) -> Iterator[Finding]:
        """Whether the loss is back on its way, some time after a spike."""
        after = AWAITED_UPDATES + RECOVERED_UPDATES
        while self._spikes and self._num_accepted - self._spikes[0] > after:
            num_before = self._spikes.popleft()
            if num_before < FITTED_UPDATES:
                continue
            losses = np.array(self._losses)[-(FITTED_UPDATES + 1 + after) :]
            before, behind = losses[:FITTED_UPDATES], losses[-RECOVERED_UPDATES:]
            steps = np.arange(len(losses)) - (FITTED_UPDATES - 1) / 2  # as seen from the middle of the line
            slope = before @ steps[:FITTED_UPDATES] / np.square(steps[:FITTED_UPDATES]).sum()
            line = before.mean() + slope * steps
            distances = np.abs(before - line[:FITTED_UPDATES])
            deviation = max(NORMAL_DEVIATION * float(np.median(distances)), LEAST_DEVIATION * abs(before.mean()))
            # Of a median, and of a line at its end; 1.2533 is what a median errs more than a mean.
            error = 1.2533 * deviation * math.sqrt(1 / RECOVERED_UPDATES + 4 / FITTED_UPDATES)
            figure, expected = float(np.median(behind)), float(np.median(line[-RECOVERED_UPDATES:]))
            limit = expected + RECOVERY_ERRORS * error
            # A curve that bends lies above its lines: what is below the level right before the spike has come back.
            if figure > max(limit, float(np.median(before[-RECOVERED_UPDATES:]))):
                said = (
                    f"the loss has not come back from the spike {after} updates ago: its median over the last "
                    f"{RECOVERED_UPDATES} updates is {figure:.5g}, and {expected:.5g} was on its way"
                )
                yield Finding("no_recovery", figure, limit, said, GO_BACK)

    def _of_creep(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step % CREEP_EVERY_STEPS or len(self._losses) < CREEP_UPDATES:
            return
        if not self._accepted_rates[-1] < self._accepted_rates[0]:
            return
        losses = np.array(self._losses)
        steps = np.arange(CREEP_UPDATES) - (CREEP_UPDATES - 1) / 2
        squares = np.square(steps).sum()
        slope = losses @ steps / squares
        residuals = losses - losses.mean() - slope * steps
        error = math.sqrt(np.square(residuals).sum() / (CREEP_UPDATES - 2) / squares)
        # Of a loss that never varied, rounding has a slope.
        error = max(error, LEAST_DEVIATION * abs(losses.mean()) / math.sqrt(squares))
        if slope > CREEP_ERRORS * error:
            said = (
                f"the loss rises while the learning rate falls: by {slope * CREEP_UPDATES:.3g} over the last "
                f"{CREEP_UPDATES} updates, {slope / error:.1f} standard errors"
            )
            figure, limit = float(slope * CREEP_UPDATES), float(CREEP_ERRORS * error * CREEP_UPDATES)
            cure = f"A log-normaliser that grows with it wants a z_loss. {GO_BACK}"
            yield Finding("creep", figure, limit, said, cure)


def tell(alarms: list[Alarm], events: EventLog) -> None:
    """Into the log and the event log of the first host: all hosts have found the same."""
    if jax.process_index() > 0:
        return
    for alarm in alarms:
        logger.warning("%s", alarm.message)
        events.write("alarm", step=alarm.step, monitor=alarm.monitor, figure=alarm.figure, limit=alarm.limit)


def _is_accepted(row: MetricsRow) -> bool:
    """Whether an update enters a level; a gradient of no length has no logarithm."""
    figures = (row.loss, row.grad_norm, row.update_norm)
    return not row.is_skipped and all(map(math.isfinite, figures)) and row.grad_norm > 0


def _loss_deviation(level: Level) -> float:
    return max(level.deviation, LEAST_DEVIATION * abs(level.median))
