"""The training loop: draws batches, takes training steps, and saves.

Each step depends on `RunState` and the absolute step alone, so a kill anywhere changes nothing. The loop does not wait
for the device: figures of a step are fetched some steps later (figures.py), and a save delays it only while the state
is copied to the host.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import jax

from runtime.data.loader import Loader
from runtime.data.prefetch import Prefetch
from runtime.parallel.hosts import HostRows
from runtime.tracking.events import EventLog
from runtime.training.control import Action, Control, Decision
from runtime.training.figures import BadBatchError, Figures
from runtime.training.meter import Meter, Pace
from runtime.training.monitors import Monitors
from runtime.training.observer import Observer
from runtime.training.profiling import Profiler
from runtime.training.run_state import RunState
from runtime.training.saving import Saver, SavingPlan
from runtime.training.settings import TrainSettings
from runtime.training.train_step import Hyperparameters, TrainStep
from runtime.training.watchdog import Watchdog

PREFETCH_BATCHES = 4
STALL_SECONDS = 0.001
"""A shorter wait for a batch is no stall."""


class Validation(Protocol):
    """A measurement of the state between steps, such as `runtime.evaluation.validation.HeldOutValidation`."""

    def is_due(self, step: int) -> bool: ...

    def measure(self, run: RunState) -> None:
        """Measure the state without changing it; all hosts of a gang call it at the same step."""


class TrainingStopped(Exception):  # noqa: N818 -- not an error: the run saved its state and stopped, as requested
    """A requested stop, with everything saved; the run resumes at `step`."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"stopped at step {step} ({reason})")
        self.step, self.reason = step, reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopParts:
    """The parts that the loop works with."""

    hyperparameters: Callable[[int], Hyperparameters]
    """Maps the number of finished steps to the hyperparameters of the next one."""
    train_step: TrainStep
    loader: Loader
    saving: SavingPlan
    events: EventLog
    control: Control
    profiler: Profiler
    observer: Observer = dataclasses.field(default_factory=Observer)
    rows: HostRows | None = None
    """The rows of each batch that this host reads; None reads all."""
    validation: Validation | None = None


def train(run: RunState, settings: TrainSettings, parts: LoopParts, *, is_resumed: bool = False) -> RunState:
    """Train from `run.step` to `settings.until_step`, and return the published state.

    Args:
        is_resumed: `run` is saved where the next attempt looks for it, so that a stop before the first step does not
            save it again.

    Raises:
        TrainingStopped: `control` requested a stop; a checkpoint of that step is complete.
        NonFiniteError: a loss or a norm is not finite, and no skip rule skipped the step.
        NoTargetsError: a batch has no targets, and no skip rule skipped it.
        SkippedTooOftenError: as many consecutive steps are skipped as the skip rule allows.
        BitsPerByteError: the loss on held-out text is not finite, or there is no such text.
    """
    if run.step > settings.until_step:
        raise ValueError(f"until_step is {settings.until_step}, before the state at step {run.step}; raise until_step.")
    if (settings.skip_rule.window_steps if settings.skip_rule else 0) != run.state.skip_window_steps:
        raise ValueError(
            f"skip_rule is {settings.skip_rule}, and the state has a history of {run.state.skip_window_steps} steps; "
            "load the state with `run_state.continued`, which adds or drops the history."
        )
    return _Loop(run, settings, parts, is_resumed).train()


class _Loop:
    """An attempt at a phase: its state, and the work before and after each step."""

    def __init__(self, run: RunState, settings: TrainSettings, parts: LoopParts, is_resumed: bool) -> None:
        self._run, self._settings, self._parts, self._is_resumed = run, settings, parts, is_resumed
        self._begin_step = run.step
        self._saving, events, observer = parts.saving, parts.events, parts.observer
        monitors = Monitors.resumed(run.metrics, settings.monitors_reset_at, first_loss=settings.first_loss)
        doubted_step = max([monitors.last_doubted_step, *run.metrics.skipped_steps[-1:]])
        self._saver = Saver(parts.saving, events, observer, begin_step=run.step, doubted_step=doubted_step)
        self._meter = Meter(
            until_step=settings.until_step, tokens_per_step=settings.tokens_per_step, events=events, observer=observer
        )
        self._watchdog = Watchdog(
            on_hang=lambda step, seconds: events.write("hang", step=step, waited_seconds=round(seconds, 1))
        )
        self._figures = Figures(run, settings, parts.loader, monitors, self._saver, self._watchdog, events, observer)
        self._pace = Pace(is_shared=jax.default_backend() == "cpu")

    def train(self) -> RunState:
        events, profiler = self._parts.events, self._parts.profiler
        with self._watchdog.watching(), self._parts.control.listening() as handles_signals:
            run = self._run
            events.write("begin", step=run.step, consumed_tokens=run.consumed_tokens, handles_signals=handles_signals)
            try:
                self._validate_if_due()
                if run.step == self._settings.until_step or run.step in self._saving.wanted_steps:
                    # A temporary checkpoint lies where this run ends now, or where another one starts.
                    self._saver.begin(run, is_milestone=True)
                self._take_steps()
                with self._meter.paused():
                    self._saver.end(self._run)
            except TrainingStopped:
                raise
            except Exception as error:
                self._saver.finish_after(error, **(error.facts if isinstance(error, BadBatchError) else {}))
                raise
            finally:
                profiler.close()
            self._report_progress(now=True)
        events.write("end", step=self._run.step, consumed_tokens=self._run.consumed_tokens)
        return self._run

    def _take_steps(self) -> None:
        settings, rows = self._settings, self._parts.rows
        with self._parts.loader.prefetched(
            self._run.data_position,
            range(self._run.step, settings.until_step),
            settings.global_batch_size,
            PREFETCH_BATCHES,
            rows=slice(None) if rows is None else rows.rows,
            feedback=self._figures.feedback,
            while_waiting=self._leave_if_stopping,
        ) as batches:
            while self._run.step < settings.until_step:
                step, *drawn = next(batches)
                is_save_due = self._saver.is_due()
                decision = self._parts.control.decide(step, until_step=settings.until_step, is_save_due=is_save_due)
                self._carry_out(decision)
                self._meter.note_stall(step, batches)
                self._take_step(*drawn)
                self._finish_step(decision, batches)

    def _take_step(self, batch: Any, position: Any) -> None:
        """Start the next step on the devices."""
        run, parts = self._run, self._parts
        placed = (lambda array: array) if parts.rows is None else parts.rows.placed
        hyperparameters = parts.hyperparameters(run.step)
        tokens, segment_ids = placed(batch.tokens), placed(batch.segment_ids)
        step = run.step + 1
        with self._watchdog.awaits(step), jax.profiler.StepTraceAnnotation("step", step_num=step):
            state, metrics = parts.train_step(run.state, tokens, segment_ids, hyperparameters)
        # Only once the batch is there: this may read the end of a cache that is still growing.
        for source in sorted(parts.loader.exhausted(position) - parts.loader.exhausted(run.data_position)):
            parts.events.write("exhausted", step=step, source=source)
        consumed_tokens = run.consumed_tokens + self._settings.tokens_per_step
        tables = self._figures.metrics, self._figures.source_losses
        self._run = RunState(state, step, consumed_tokens, position, *tables)
        self._figures.add(run, self._run, batch, metrics, hyperparameters.learning_rate)

    def _finish_step(self, decision: Decision, batches: Prefetch[Any]) -> None:
        """Validate, fetch figures, save, profile and report, where each is due."""
        run, saver, profiler = self._run, self._saver, self._parts.profiler
        is_validated = self._validate_if_due()
        is_milestone = self._saving.is_milestone(run.step, self._settings.until_step)
        is_saved = is_milestone or saver.is_due_at(run.step)
        is_profiled = profiler.is_due_at(run.step)
        self._figures.fetch(all_but=0 if is_saved or is_profiled else self._figures.late_steps)
        if is_saved:
            on_complete = functools.partial(decision.reply_published, run.step)
            with self._meter.paused():
                saver.begin(run, is_milestone=is_milestone, on_complete=on_complete)
        if is_profiled:
            with self._meter.paused():
                profiler.end()
        saver.poll()
        self._report_progress()
        is_delayed = decision.action != Action.CONTINUE or batches.last_wait_seconds > STALL_SECONDS
        if is_delayed or is_validated or is_saved or is_profiled or self._settings.logs_digest_at(run.step):
            self._pace.interrupt()
        for alarm in self._pace.end_step(run.step):
            self._figures.raise_alarm(alarm)

    def _carry_out(self, decision: Decision) -> None:
        step, action = self._run.step, decision.action
        if action == Action.SAVE_AND_EXIT:
            self._leave()
        elif action == Action.PROFILE:
            self._figures.fetch()  # the device has finished the steps before
            self._parts.profiler.begin(step, self._settings.until_step, decision)
        elif action == Action.PUBLISH:
            wanted = self._saving.wanted_steps | {decision.step}
            self._saving = dataclasses.replace(self._saving, wanted_steps=wanted)
            if decision.step > step + 1:  # the very next step gets its reply once it is saved
                decision.reply(f"step {decision.step:,} will be published; the run is at step {step:,}")
        elif action == Action.SAVE:
            self._save(decision)
        for request in decision.requests:
            self._parts.events.write("request", step=step, origin=request.origin)

    def _save(self, decision: Decision) -> None:
        step = self._run.step
        if step == self._saver.last_step:
            with self._meter.paused():
                self._saver.finish()
            decision.reply(f"step {step:,} is saved already: {self._saver.last_path}")
        elif step == self._begin_step:
            decision.refuse(f"the run has taken no step since it began at step {step:,}")
        else:
            self._figures.fetch()  # a state is saved only if every step before it is finite
            with self._meter.paused():
                self._saver.begin(self._run, on_complete=lambda path: decision.reply(f"saved step {step:,}: {path}"))

    def _leave(self) -> NoReturn:
        run, reason = self._run, self._parts.control.reason
        self._figures.fetch()
        if self._saver.last_step != run.step and not (self._is_resumed and run.step == self._begin_step):
            self._saver.begin(run)
        self._saver.finish()
        self._parts.events.write("stop", step=run.step, consumed_tokens=run.consumed_tokens, reason=reason)
        raise TrainingStopped(run.step, reason)

    def _leave_if_stopping(self) -> None:
        """Stop while waiting for a batch, if any host has to stop."""
        if self._parts.control.is_stopping():
            # The other hosts decide before the same step, with or without its batch.
            self._parts.control.decide(self._run.step, until_step=self._settings.until_step)
            self._leave()

    def _validate_if_due(self) -> bool:
        """Validate before the state can be saved: a state that fails must not be published."""
        validation = self._parts.validation
        if validation is None or not validation.is_due(self._run.step):
            return False
        self._figures.fetch()  # first, so that a bad step raises its own error
        with self._meter.paused():
            validation.measure(self._run)
        return True

    def _report_progress(self, *, now: bool = False) -> None:
        """Report the newest fetched step, since the loop is some steps ahead of the device."""
        run, step = self._run, self._figures.ended_step
        consumed_tokens = run.consumed_tokens - (run.step - step) * self._settings.tokens_per_step
        self._meter.tick(step, consumed_tokens, self._figures.loss, now=now)
