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

from runtime.model.config import ModelConfig
from runtime.optim.skipping import LEAST_DEVIATION
from runtime.tracking.events import EventLog
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.training.level import Level
from runtime.training.norm_places import Place
from runtime.training.trend import recovery, slope

logger = logging.getLogger(__name__)

LEVEL_UPDATES = 128
"""Updates that a level is taken over."""
FEWEST_UPDATES = 64
"""Of a level that something is held against; as many as a skip rule of public runs waits for."""
QUIET_UPDATES = 128
"""In a row without a finding end an incident: the level is wholly one of updates after it then. One of creep ends after
`CREEP_UPDATES`, for the same reason."""

SIGMA = 6.0
"""Deviations of a level, and standard errors of a loss that is to come back."""
LOWER_SIGMA = 3.0
"""Of a low loss, below the lowest of the level: half, since the lowest of normal values is about as far down."""
LOW_LOSS_LEAST_RATE = 0.9
"""Of the learning rate as many updates ago as a level has: a loss that falls with a quick decay is meant to."""
LEAST_GRAD_NORM_FACTOR = 2.0
"""Times the level: the first alarming norms of published spikes were at 4, 17 and 20 times it, and those of a laptop's
batches of four sequences reach 1.5 times with nothing wrong."""

PERSISTENT_UPDATES, PERSISTENT_LEAST, PERSISTENT_SIGMA = 32, 8, 3.0
"""Not while the learning rate has risen within these updates or the level before them: the loss may rise with it."""

UPDATE_NORM_FACTOR, UPDATE_NORM_UPDATES = 2.0, 20
"""So many updates in a row. Simulated, Adam makes of one gradient, however large, up to 17 with b2 = 0.999, 8 with 0.99
and none with 0.95; noise makes none at all."""

FITTED_UPDATES, AWAITED_UPDATES, RECOVERED_UPDATES = 256, 32, 64
"""Before a spike; after it, as many as BLOOM's took to come back; and those that are to have come back."""

CREEP_UPDATES, CREEP_ERRORS = 1000, 4.0
CREEP_EVERY_STEPS = 50

REMEMBERED_UPDATES = 2 * CREEP_UPDATES
"""Accepted updates that a finding, and whether it is said, may depend on; the others reach less far back."""

FIRST_LOSS_TOLERANCE = 0.5
"""Nats around the first loss of a model that knows nothing, or as many standard deviations of its logits where one is
more than a nat: frequent tokens move the mean by a tenth of one."""

LEAST_RISE = 1e-9
"""Of a learning rate: less is rounding."""

SPIKES = ("grad_norm", "loss_spike")
"""Monitors behind whose alarms the loss is to come back."""
ISOLATED = ("loss_spike", "low_loss")
"""Of single batches: only what they alarm of is in doubt. Where one batch in a hundred is odd, an incident that each of
them prolonged would never end, and nothing be certified."""
WORSE_FACTOR = 10.0
"""Within an incident, a finding so many times as far past its limit as all of the last ones is said too."""


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
    "the checkpoints to go on from, of which one that is 100 updates older than this at least is to be taken; it "
    "prints the line that goes around what it met."
)
LOOK_AT_DATA = (
    "Nothing was stopped or changed. Look at what was drawn (text that repeats, a broken source, targets that leak); "
    "`certified` with the name of the phase lists the checkpoints from before it."
)
LOOK_AT_THE_BEGINNING = (
    "Nothing was stopped or changed, and no later figure tells it as plainly: stop, and look at how the weights begin "
    "(model.initializer_range), at the ids of the first batch, and whether a position sees the token it is to predict."
)


class FirstLoss(NamedTuple):
    """Of weights that have learned nothing: where it is to be, and how far off is no chance."""

    expected: float
    tolerance: float


def first_loss_of(model: ModelConfig) -> FirstLoss:
    """ln(vocab_size), and half the variance of the logits, in nats.

    Behind the last norm a hidden state has the length sqrt(hidden_size), and the head's columns are drawn independently
    of it: logits are normal, and the mean of their exponentials is exp of half the variance. Tied heads hardly differ.
    """
    variance = model.hidden_size * model.initializer_range**2
    return FirstLoss(math.log(model.vocab_size) + variance / 2, FIRST_LOSS_TOLERANCE * max(1.0, math.sqrt(variance)))


def never(step: int) -> bool:
    """Of a run whose level is never meant to change."""
    return False


class Monitors:
    """Follows the updates of a run, one after the other.

    An update that was left out, or whose figures are not finite, enters nothing. Everything is forgotten where the
    level is meant to change: where `begins_anew_at` says so, of the number of updates finished before, and where the
    learning rate begins to rise, at once or over many updates. An incident goes on there: what was in doubt stays so.
    """

    def __init__(self, begins_anew_at: Callable[[int], bool] = never, *, first_loss: FirstLoss | None = None) -> None:
        """`first_loss` of a run from scratch; None of one whose weights know something."""
        self._begins_anew_at = begins_anew_at
        self._first_loss = first_loss
        self._rate: float | None = None
        self._was_rising = False
        self._num_quiet = QUIET_UPDATES
        """Accepted updates since the last finding of any monitor; it outlasts a level."""
        self.last_doubted_step = 0
        """The newest update that was in doubt."""
        self._begin_anew()

    @classmethod
    def resumed(
        cls,
        metrics: MetricsTable,
        begins_anew_at: Callable[[int], bool] = never,
        *,
        first_loss: FirstLoss | None = None,
    ) -> "Monitors":
        """Behind the last row of a table, as if they had followed all of it."""
        monitors = cls(begins_anew_at, first_loss=first_loss)
        begin, num_accepted = len(metrics), 0
        while begin and num_accepted < REMEMBERED_UPDATES:
            begin -= 1
            num_accepted += _is_accepted(metrics[begin])
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
        self._recent: dict[str, collections.deque[tuple[int, float]]] = {}
        """By monitor, its findings that an incident goes back to: the number of accepted updates, and how far past the
        limit."""
        self._last_rise = -PERSISTENT_UPDATES - LEVEL_UPDATES
        """The number of accepted updates before the newest one with a higher learning rate than the update before."""
        self._spikes: collections.deque[int] = collections.deque()
        """The numbers of accepted updates before alarms behind which the loss has yet to be looked at."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether an incident lasts: the newest updates are no witness of the state before them."""
        return self._num_quiet < QUIET_UPDATES

    def observe(self, row: MetricsRow) -> list[Alarm]:
        """The alarms of the update that follows the last one."""
        is_rising = self._is_rising(row.learning_rate)
        # A straight line is no finding, so a rise may go on; where it begins there is a bend.
        if self._begins_anew_at(row.step - 1) or (is_rising and not self._was_rising):
            self._begin_anew()
        self._rate, self._was_rising = row.learning_rate, is_rising
        if is_rising:
            self._last_rise = self._num_accepted
        if not _is_accepted(row):
            return []
        self._add(row)
        self._num_quiet += 1
        alarms = []
        for found in self._findings(row):
            quiet_updates = CREEP_UPDATES if found.monitor == "creep" else QUIET_UPDATES
            recent = self._recent.setdefault(found.monitor, collections.deque())
            while recent and self._num_accepted - recent[0][0] > quiet_updates:
                recent.popleft()
            distance = abs(found.figure - found.limit)
            is_said = all(distance > WORSE_FACTOR * before for _, before in recent)
            recent.append((self._num_accepted, distance))
            if is_said:
                message = f"step {row.step}: {found.said}, past the limit of {found.limit:.4g}. {found.cure}"
                alarms.append(Alarm(found.monitor, row.step, found.figure, found.limit, message))
            if is_said or found.monitor not in ISOLATED:
                self._num_quiet = 0
        if self.is_in_doubt:
            self.last_doubted_step = row.step
        if any(alarm.monitor in SPIKES for alarm in alarms):
            self._spikes.append(self._num_accepted - 1)
        return alarms

    def _is_rising(self, rate: float) -> bool:
        return self._rate is not None and rate > self._rate * (1 + LEAST_RISE)

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
        yield from self._of_first_loss(row)
        yield from self._of_grad_norm(row)
        yield from self._of_loss(row)
        yield from self._of_persistent_loss()
        yield from self._of_update_norm(row)
        yield from self._of_recovery()
        yield from self._of_creep(row)

    def _of_first_loss(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step > 1 or self._first_loss is None:
            return
        expected, tolerance = self._first_loss
        limit = expected + math.copysign(tolerance, row.loss - expected)
        if abs(row.loss - expected) > tolerance:
            said = f"the first loss is {row.loss:.4g}, and {expected:.4g} is that of a model that knows nothing"
            yield Finding("first_loss", row.loss, limit, said, LOOK_AT_THE_BEGINNING)

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
        limit = min(median - SIGMA * deviation, level.lowest - LOWER_SIGMA * deviation)
        rate_before = self._accepted_rates[-len(level) - 1]
        if row.loss < limit and row.learning_rate >= LOW_LOSS_LEAST_RATE * rate_before:
            said = f"the loss is suspiciously low: {row.loss:.4g}, {of_level}"
            yield Finding("low_loss", row.loss, limit, said, LOOK_AT_DATA)

    def _of_persistent_loss(self) -> Iterator[Finding]:
        level = self._earlier_loss
        num_since_rise = self._num_accepted - self._last_rise
        if len(level) < FEWEST_UPDATES or num_since_rise < PERSISTENT_UPDATES + LEVEL_UPDATES:
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
        num_after = AWAITED_UPDATES + RECOVERED_UPDATES
        while self._spikes and self._num_accepted - self._spikes[0] > num_after:
            if self._spikes.popleft() < FITTED_UPDATES:
                continue
            losses = np.array(self._losses)[-(FITTED_UPDATES + 1 + num_after) :]
            found = recovery(losses, num_before=FITTED_UPDATES, num_after=RECOVERED_UPDATES, sigma=SIGMA)
            if found.figure > found.highest:
                said = (
                    f"the loss has not come back from the spike {num_after} updates ago: its median over the last "
                    f"{RECOVERED_UPDATES} updates is {found.figure:.5g}, and {found.expected:.5g} was on its way"
                )
                yield Finding("no_recovery", found.figure, found.highest, said, GO_BACK)

    def _of_creep(self, row: MetricsRow) -> Iterator[Finding]:
        if row.step % CREEP_EVERY_STEPS or len(self._losses) < CREEP_UPDATES:
            return
        if row.learning_rate > self._accepted_rates[0] or self._num_accepted - self._last_rise < CREEP_UPDATES:
            return
        rise, error = (CREEP_UPDATES * figure for figure in slope(np.array(self._losses)))
        if rise > CREEP_ERRORS * error:
            said = (
                f"the loss rises, and the learning rate does not: by {rise:.3g} over the last {CREEP_UPDATES} updates, "
                f"{rise / error:.1f} standard errors"
            )
            cure = f"A log-normaliser that grows with it wants a z_loss. {GO_BACK}"
            yield Finding("creep", rise, CREEP_ERRORS * error, said, cure)


def tell(alarm: Alarm, events: EventLog, place: Place) -> None:
    """Into the log and the event log of the first host: all hosts have found the same."""
    if jax.process_index() > 0:
        return
    logger.warning("%s", f"{alarm.message} {place.said}".rstrip())
    found = {"monitor": alarm.monitor, "figure": alarm.figure, "limit": alarm.limit}
    events.write("alarm", step=alarm.step, **found, **place.facts)


def _is_accepted(row: MetricsRow) -> bool:
    """Whether an update enters a level; a gradient of no length has no logarithm."""
    figures = (row.loss, row.grad_norm, row.update_norm)
    return not row.is_skipped and all(map(math.isfinite, figures)) and row.grad_norm > 0


def _loss_deviation(level: Level) -> float:
    return max(level.deviation, LEAST_DEVIATION * abs(level.median))
