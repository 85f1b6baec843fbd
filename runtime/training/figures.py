"""Figures: what each update of a run showed, fetched from the devices late, and told to all that go by it.

The device is never waited for in an update: its figures are on their way to the host while the next ones run, and all
of them are fetched only where the run is saved, measured, profiled or stopped.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from runtime.data.loader import LoadedBatch, Loader
from runtime.data.mixing.feedback import Feedback
from runtime.tracking.events import EventLog
from runtime.tracking.parts import GRADIENT, NORMS, UPDATE, norms_fields
from runtime.training.copies import Copies, begin_comparison, finish_comparison
from runtime.training.digests import begin_digests, finish_digests
from runtime.training.monitors import Alarm, Monitors, tell
from runtime.training.norm_places import NOWHERE, SEEN_IN_UPDATES, Place, RecentNorms
from runtime.training.part_norms import tensors_of
from runtime.training.run_state import RunState
from runtime.training.saving import Saver
from runtime.training.settings import TrainSettings
from runtime.training.train_step import StepMetrics
from runtime.training.update import Update, losses_by_source, metrics_row, tell_of_skip
from runtime.training.watchdog import Watchdog

METRICS_LATE_STEPS = 2


class Figures:
    """Of the updates of one attempt, in their order; the tables of the run are made of them."""

    def __init__(
        self, run: RunState, settings: TrainSettings, loader: Loader, monitors: Monitors, saver: Saver,
        watchdog: Watchdog, events: EventLog, on_alarm: Callable[[Alarm], None],
    ) -> None:  # fmt: skip
        """Of those that follow `run`."""
        self._settings, self._loader, self._monitors, self._saver = settings, loader, monitors, saver
        self._watchdog, self._events, self._on_alarm = watchdog, events, on_alarm
        self._tensors = tensors_of(run.state.params)
        self._recent_norms, self._copies = RecentNorms(self._tensors), Copies(run.step)
        self._pending: collections.deque[Update] = collections.deque()
        self.metrics, self.source_losses = run.metrics.copy(), run.source_losses.copy()
        """The tables up to the newest update whose figures are fetched."""
        self.loss: float | None = None
        """The newest one known: none is before the first update of this attempt has ended."""
        self.ended_step = run.step
        """Of the update that it is of: the device is at work on those that follow."""
        lag_steps = loader.lag_steps
        known_steps = range(max(run.step - lag_steps, 0), run.step)
        self.feedback = Feedback({step: self.source_losses.seen(step + 1) for step in known_steps})
        """What a policy that learns is told of them."""
        # One that learns from the last update waits for its figures, and so does the device.
        self.late_steps = min(METRICS_LATE_STEPS, lag_steps - 1) if lag_steps else METRICS_LATE_STEPS
        """How many updates they may be behind, where nobody needs them sooner."""

    def add(
        self, before: RunState, after: RunState, batch: LoadedBatch, metrics: StepMetrics, learning_rate: float
    ) -> None:
        """Those of the newest update, which led from one state to the other; waits for nothing."""
        for figure in jax.tree.leaves(metrics):
            figure.copy_to_host_async()
        row = {
            "step": after.step,
            "consumed_tokens": after.consumed_tokens,
            "global_batch_size": self._settings.global_batch_size,
            "learning_rate": learning_rate,
        }
        is_digested, params = self._settings.is_digested(after.step), after.state.params
        digests = begin_digests(params) if is_digested else None
        copies = begin_comparison(params) if is_digested else {}
        self._pending.append(Update(before.data_position, after.data_position, batch, row, metrics, digests, copies))

    def fetch(self, *, all_but: int = 0) -> None:
        """Waits for those of all updates but the newest `all_but`, and tells of each update in turn.

        Raises:
            NonFiniteError: a loss or a norm is not finite, and no skip rule left the update out.
            NoTargetsError: a batch had nothing to predict, and no skip rule left the update out.
            SkippedTooOftenError: as many updates in a row were left out as the skip rule allows.
        """
        while len(self._pending) > all_but:
            self._tell(self._pending.popleft())

    def raise_alarm(self, alarm: Alarm, place: Place = NOWHERE) -> None:
        """Tells of what is wrong, and where in the model."""
        tell(alarm, self._events, place)
        self._on_alarm(alarm)

    def _tell(self, update: Update) -> None:
        with self._watchdog.awaits(update.row["step"]):
            update = dataclasses.replace(update, metrics=jax.tree.map(np.asarray, update.metrics))
        norms, rate = np.asarray(update.metrics.part_norms), update.row["learning_rate"]
        placed = functools.partial(self._recent_norms.place, norms, rate)
        row, of_sources = metrics_row(update, placed), losses_by_source(update, self._loader)
        if row.is_skipped and self._settings.skip_rule is not None:
            tell_of_skip(update, row, self._settings.skip_rule, self._events, placed())
        if self._settings.are_norms_told(row.step) and jax.process_index() == 0:  # all hosts have the same
            self._events.write(NORMS, step=row.step, **norms_fields(self._tensors, norms))
        if update.digests is not None:
            with self._watchdog.awaits(row.step):
                digests, apart = finish_digests(update.digests), finish_comparison(update.copies)
            self._events.write("digest", step=row.step, digest=digests.whole, tensors=digests.tensors)
            for alarm in self._copies.observe(row.step, apart):
                self.raise_alarm(alarm, Place("", {"tensors": apart}))
        self.metrics.append(row)
        self.source_losses.append(of_sources)
        for alarm in self._monitors.observe(row):
            self.raise_alarm(alarm, placed(measured=UPDATE if alarm.monitor in SEEN_IN_UPDATES else GRADIENT))
        if not row.is_skipped:
            self._recent_norms.add(norms, rate)
        self._saver.note(row, is_in_doubt=self._monitors.is_in_doubt or self._copies.are_apart)
        if self._loader.lag_steps:
            self.feedback.publish(row.step - 1, self.source_losses.seen(row.step))
        self.loss, self.ended_step = row.loss, row.step
