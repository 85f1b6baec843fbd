"""Figures: the results of each training step, fetched from the devices late and passed to monitors, tables and logs.

A step never waits for the device. Its figures travel to the host while later steps run; all of them are fetched only
where the run is saved, validated, profiled or stopped.
"""

import collections
import dataclasses
import functools

import jax
import numpy as np

from runtime.data.loader import LoadedBatch, Loader
from runtime.data.mixing.mixer import Feedback
from runtime.tracking.events import EventLog
from runtime.tracking.parts import GRADIENT, NORMS, UPDATE, norms_fields
from runtime.training.copies import Copies, begin_comparison, finish_comparison
from runtime.training.digests import begin_digests, finish_digests
from runtime.training.finished_step import PendingStep, log_skip, losses_by_source, metrics_row
from runtime.training.monitors import Alarm, Monitors, log_alarm
from runtime.training.norm_places import NOWHERE, UPDATE_MONITORS, Place, RecentNorms
from runtime.training.observer import Observer
from runtime.training.part_norms import tensors_of
from runtime.training.run_state import RunState
from runtime.training.saving import Saver
from runtime.training.settings import TrainSettings
from runtime.training.train_step import StepMetrics
from runtime.training.watchdog import Watchdog

LATE_STEPS = 2


class Figures:
    """The figures of one attempt, in the order of its steps."""

    def __init__(
        self, run: RunState, settings: TrainSettings, loader: Loader, monitors: Monitors, saver: Saver,
        watchdog: Watchdog, events: EventLog, observer: Observer,
    ) -> None:  # fmt: skip
        self._settings, self._loader, self._monitors, self._saver = settings, loader, monitors, saver
        self._watchdog, self._events, self._observer = watchdog, events, observer
        self._tensors = tensors_of(run.state.params)
        self._recent_norms, self._copies = RecentNorms(self._tensors), Copies(run.step)
        self._pending: collections.deque[PendingStep] = collections.deque()
        self.metrics, self.source_losses = run.metrics.copy(), run.source_losses.copy()
        """The tables up to the newest fetched step."""
        self.loss: float | None = None
        """The newest known loss; None before the first step of this attempt has ended."""
        self.ended_step = run.step
        """The newest fetched step; the device works on later ones."""
        lag_steps = loader.lag_steps
        known_steps = range(max(run.step - lag_steps, 0), run.step)
        self.feedback = Feedback({step: self.source_losses.seen(step + 1) for step in known_steps})
        """Losses for a mixing policy that learns."""
        # A policy that learns from the last step waits for its figures, and so does the device.
        self.late_steps = min(LATE_STEPS, lag_steps - 1) if lag_steps else LATE_STEPS
        """How many steps figures may lag behind."""

    def add(
        self, before: RunState, after: RunState, batch: LoadedBatch, metrics: StepMetrics, learning_rate: float
    ) -> None:
        """Add the newest step, which led from `before` to `after`, without waiting."""
        for figure in jax.tree.leaves(metrics):
            figure.copy_to_host_async()
        row = {
            "step": after.step,
            "consumed_tokens": after.consumed_tokens,
            "global_batch_size": self._settings.global_batch_size,
            "learning_rate": learning_rate,
        }
        is_digested, params = self._settings.logs_digest_at(after.step), after.state.params
        digests = begin_digests(params) if is_digested else None
        copies = begin_comparison(params) if is_digested else {}
        pending = PendingStep(before.data_position, after.data_position, batch, row, metrics, digests, copies)
        self._pending.append(pending)

    def fetch(self, *, all_but: int = 0) -> None:
        """Wait for the figures of all steps but the newest `all_but`, and report each step in turn.

        Raises:
            NonFiniteError: a loss or a norm is not finite, and no skip rule skipped the step.
            NoTargetsError: a batch has no targets, and no skip rule skipped it.
            SkippedTooOftenError: as many consecutive steps are skipped as the skip rule allows.
        """
        while len(self._pending) > all_but:
            self._report(self._pending.popleft())

    def raise_alarm(self, alarm: Alarm, place: Place = NOWHERE) -> None:
        """Log an alarm with its place in the model, and report it."""
        log_alarm(alarm, self._events, place)
        self._observer.on_alarm(alarm)

    def _report(self, pending: PendingStep) -> None:
        with self._watchdog.awaits(pending.row["step"]):
            pending = dataclasses.replace(pending, metrics=jax.tree.map(np.asarray, pending.metrics))
        norms, rate = np.asarray(pending.metrics.part_norms), pending.row["learning_rate"]
        placed = functools.partial(self._recent_norms.place, norms, rate)
        row, source_losses = metrics_row(pending, placed), losses_by_source(pending, self._loader)
        if row.is_skipped and self._settings.skip_rule is not None:
            log_skip(pending, row, self._settings.skip_rule, self._events, placed())
        if self._settings.logs_norms_at(row.step) and jax.process_index() == 0:  # all hosts have the same
            self._events.write(NORMS, step=row.step, **norms_fields(self._tensors, norms))
        self._report_digests(pending, row.step)
        self.metrics.append(row)
        self.source_losses.append(source_losses)
        for alarm in self._monitors.observe(row):
            self.raise_alarm(alarm, placed(measured=UPDATE if alarm.monitor in UPDATE_MONITORS else GRADIENT))
        if not row.is_skipped:
            self._recent_norms.add(norms, rate)
        self._saver.note(row, is_in_doubt=self._monitors.is_in_doubt or self._copies.are_apart)
        if self._loader.lag_steps:
            self.feedback.publish(row.step - 1, self.source_losses.seen(row.step))
        self.loss, self.ended_step = row.loss, row.step

    def _report_digests(self, pending: PendingStep, step: int) -> None:
        if pending.digests is None:
            return
        with self._watchdog.awaits(step):
            digests, apart = finish_digests(pending.digests), finish_comparison(pending.copies)
        self._events.write("digest", step=step, digest=digests.whole, tensors=digests.tensors)
        for alarm in self._copies.observe(step, apart):
            self.raise_alarm(alarm, Place("", {"tensors": apart}))
