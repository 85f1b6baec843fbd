"""Figures: the results of each training step, fetched from the devices late and passed to monitors, tables and logs.

A step never waits for the device. Its figures travel to the host while later steps run; all of them are fetched only
where the run is saved, validated, profiled or stopped.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from runtime.data.loader import LoadedBatch, Loader
from runtime.data.mixing.mixer import Feedback
from runtime.data.sampler import DataPosition
from runtime.optim.skip_rule import SkipRule
from runtime.tracking.events import EventLog
from runtime.tracking.metrics import MetricsRow
from runtime.tracking.parts import GRADIENT, NORMS, UPDATE, norms_fields
from runtime.tracking.source_losses import SourceLosses, rows_of_update
from runtime.training.alarm_events import BATCH_MONITORS, log_alarm, log_spikes, odd_row
from runtime.training.digests import Copies, begin_comparison, begin_digests, finish_comparison, finish_digests
from runtime.training.monitors import Monitors
from runtime.training.norm_places import UPDATE_MONITORS, Place, RecentNorms, standing_out
from runtime.training.observer import Alarm, Observer
from runtime.training.part_norms import tensors_of
from runtime.training.run_state import RunState
from runtime.training.saving import Saver
from runtime.training.settings import TrainSettings
from runtime.training.train_step import StepMetrics
from runtime.training.watchdog import Watchdog

LATE_STEPS = 2
ROLL_BACK = "Or roll back and skip these batches: `rollback PHASE` prints the command."
NO_FIGURES = frozenset({"row_loss", "row_log_normalizer", "row_targets", "part_norms", "skip"})
"""Fields of `StepMetrics` that are no figure of the whole step."""


class BadBatchError(RuntimeError):
    """A step that cannot stand; `facts` are fields of its event, such as `step` and `data_position`."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


class NonFiniteError(BadBatchError):
    """A loss or norm that is not finite; the step and all after it are not saved."""


class NoTargetsError(BadBatchError):
    """A batch without targets, whose mean loss does not exist; the step is not saved."""


class SkippedTooOftenError(RuntimeError):
    """More consecutive skipped steps than single bad batches explain."""


@dataclasses.dataclass(frozen=True)
class PendingStep:
    """A step whose figures are on the device, and not in the tables yet."""

    before: DataPosition
    after: DataPosition
    batch: LoadedBatch
    row: dict[str, Any]
    metrics: StepMetrics
    digests: dict[str, jax.Array] | None
    """The result of `begin_digests`, where digests are due."""
    copies: dict[str, jax.Array]
    """The result of `begin_comparison`."""


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
            BadBatchError, SkippedTooOftenError: a step cannot stand; see `metrics_row` and `log_skip`.
        """
        while len(self._pending) > all_but:
            self._report(self._pending.popleft())

    def raise_alarm(self, alarm: Alarm, place: Place | None = None) -> None:
        """Log an alarm with its place in the model, and report it."""
        log_alarm(alarm, self._events, place or {})
        self._observer.on_alarm(alarm)

    def _report(self, pending: PendingStep) -> None:
        with self._watchdog.awaits(pending.row["step"]):
            pending = dataclasses.replace(pending, metrics=jax.tree.map(np.asarray, pending.metrics))
        norms, rate = np.asarray(pending.metrics.part_norms), pending.row["learning_rate"]
        placed = functools.partial(self._recent_norms.place, norms, rate)

        def placed_with_row() -> Place:
            return placed() | self._odd_row(pending)

        row, source_losses = metrics_row(pending, placed_with_row), losses_by_source(pending, self._loader)
        if row.is_skipped and self._settings.skip_rule is not None:
            log_skip(pending, row, self._settings.skip_rule, self._events, placed_with_row())
        if self._settings.logs_norms_at(row.step) and jax.process_index() == 0:  # all hosts have the same
            self._events.write(NORMS, step=row.step, **norms_fields(self._tensors, norms))
        self._report_digests(pending, row.step)
        self.metrics.append(row)
        self.source_losses.append(source_losses)
        if jax.process_index() > 0:  # the first host writes the table
            self.source_losses.forget_blocks()
        for alarm in self._monitors.observe(row):
            place = placed(measured=UPDATE if alarm.monitor in UPDATE_MONITORS else GRADIENT)
            if alarm.monitor in BATCH_MONITORS:
                place |= self._odd_row(pending, lowest=alarm.monitor == "low_loss")
            self.raise_alarm(alarm, place)
        if self._monitors.single_spikes or self._monitors.recovered_step is not None:
            log_spikes(self._monitors, self._events, placed_with_row())
        if not row.is_skipped:
            self._recent_norms.add(norms, rate)
        self._saver.note(row, is_in_doubt=self._monitors.is_in_doubt or self._copies.are_apart)
        if self._loader.lag_steps:
            self.feedback.publish(row.step - 1, self.source_losses.seen(row.step))
        self.loss, self.ended_step = row.loss, row.step

    def _odd_row(self, pending: PendingStep, *, lowest: bool = False) -> Place:
        sources = [self._loader.sources[index] for index in pending.batch.source_index]
        loss, targets = (np.asarray(each) for each in (pending.metrics.row_loss, pending.metrics.row_targets))
        return odd_row(loss, targets, sources, lowest=lowest)

    def _report_digests(self, pending: PendingStep, step: int) -> None:
        if pending.digests is None:
            return
        with self._watchdog.awaits(step):
            digests, apart = finish_digests(pending.digests), finish_comparison(pending.copies)
        self._events.write("digest", step=step, digest=digests.whole, tensors=digests.tensors)
        for alarm in self._copies.observe(step, apart):
            self.raise_alarm(alarm, {"tensors": apart})


def metrics_row(pending: PendingStep, placed: Callable[[], Place]) -> MetricsRow:
    """Return the row of the metrics table; `placed` finds the part of the model for an error message.

    Raises:
        NoTargetsError: the batch has no targets, and no skip rule skipped it.
        NonFiniteError: a loss or a norm is not finite, and no skip rule skipped the step.
    """
    row, metrics = pending.row, pending.metrics
    figures = {name: value.item() for name, value in metrics._asdict().items() if name not in NO_FIGURES}
    if metrics.skip is not None and bool(metrics.skip.is_skipped):
        return MetricsRow(**row, **figures, is_skipped=1)
    facts = {"step": row["step"], "data_position": pending.before.to_json()}
    if not figures["num_targets"]:
        raise NoTargetsError(
            f"step {row['step']}: no position of the batch of {row['global_batch_size']} sequences has a next token of "
            "its own document, so there is nothing to learn. The step is not saved, and a resumed run meets it again: "
            "look for a source whose documents have one token, or set a skip rule, which skips such a batch.",
            **facts,
        )
    wrong = sorted(name for name, value in figures.items() if not math.isfinite(value))
    if wrong:
        # Before the first step of a run there is no state to fork.
        is_first = row["step"] == 1
        place = placed()
        raise NonFiniteError(
            f"step {row['step']}: {', '.join(f'{name} is {figures[name]}' for name in wrong)} at learning rate "
            f"{row['learning_rate']:.6g}, in a batch of {row['global_batch_size']} sequences (the event log has their "
            f"data position). These stand out: {standing_out(place)}. The step is not saved, and a resumed run meets "
            "it again: "
            f"{'set' if is_first else 'fork an earlier milestone with'} a lower learning_rate or max_norm, or another "
            f"mixture.{'' if is_first else f' {ROLL_BACK}'}",
            **facts,
            **place,
        )
    return MetricsRow(**row, **figures)


def log_skip(pending: PendingStep, row: MetricsRow, skip_rule: SkipRule, events: EventLog, place: Place) -> None:
    """Write the event of a skipped step.

    Raises:
        SkippedTooOftenError: as many consecutive steps are skipped as the rule allows.
    """
    assert pending.metrics.skip is not None
    skip = pending.metrics.skip
    figures = {
        "loss": row.loss,
        "grad_norm": row.grad_norm,
        "loss_limit": skip.loss_limit.item(),
        "grad_norm_limit": skip.grad_norm_limit.item(),
    }
    consecutive = int(skip.num_consecutive)
    events.write(
        "skipped",
        step=row.step,
        consecutive=consecutive,
        num_targets=row.num_targets,
        **{name: value if math.isfinite(value) else str(value) for name, value in figures.items()},
        data_position=pending.before.to_json(),
        **place,
    )
    if consecutive >= skip_rule.max_consecutive:
        raise SkippedTooOftenError(
            f"step {row.step}: the skip rule skipped {consecutive} steps in a row, the last with loss {row.loss:.6g} "
            f"(limit {skip.loss_limit:.6g}) and gradient norm {row.grad_norm:.6g} (limit {skip.grad_norm_limit:.6g}) "
            f"over {row.num_targets} targets. These stand out: {standing_out(place)}. Single batches do not explain "
            "so many: fork an earlier "
            "milestone with a lower learning_rate or another mixture, or with a larger skip.sigma if these values are "
            f"the new normal. {ROLL_BACK}"
        )


def losses_by_source(pending: PendingStep, loader: Loader) -> list[SourceLosses]:
    """Return sums over the rows of each source, in float64 and in the order of the rows."""
    metrics, index = pending.metrics, pending.batch.source_index

    def by_identity(rows: Any = None, dtype: np.typing.DTypeLike = np.float64) -> dict[str, Any]:
        sums = np.bincount(index, weights=rows, minlength=len(loader.sources)).astype(dtype).tolist()
        return {identity: sums[loader.index_of[identity]] for identity in pending.after.shares}

    return rows_of_update(
        pending.row["step"],
        pending.after.shares,
        loader.names,
        num_sequences=by_identity(dtype=np.int64),
        num_targets=by_identity(metrics.row_targets, np.int64),
        loss_sum=by_identity(metrics.row_loss),
        log_normalizer_sum=by_identity(metrics.row_log_normalizer),
    )
