"""The training loop: draws batches, takes steps, and keeps what a kill would otherwise lose.

The loop holds no state but `RunState`, so cutting it anywhere changes nothing: each update depends on the state,
the data position and the absolute step alone. The device is never waited for: figures of an update are fetched some
updates later (figures.py), and a checkpoint holds the loop up only while the state is copied to the host.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import jax

from runtime.data.loader import Loader
from runtime.parallel.host_rows import HostRows
from runtime.tracking.events import EventLog
from runtime.training.control import Control, Order, Word
from runtime.training.figures import Figures
from runtime.training.meter import Meter
from runtime.training.monitors import Alarm, Monitors
from runtime.training.pace import Pace
from runtime.training.profiling import Profiler
from runtime.training.run_state import RunState
from runtime.training.saving import Saver, SavingPlan
from runtime.training.settings import TrainSettings
from runtime.training.train_step import Hyperparameters, TrainStep
from runtime.training.update import BadBatchError
from runtime.training.watchdog import Watchdog

PREFETCH_BATCHES = 4
WAIT_SECONDS = 0.001
"""Less is no wait for a batch."""


class Validation(Protocol):
    """What is measured of the state between updates, such as the `Validation` of `runtime.evaluation.validation`."""

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` finished updates is to be measured."""

    def measure(self, run: RunState) -> None:
        """Reads the state, and changes nothing of it; each host of a gang must, at the same step."""


class TrainingStopped(Exception):  # noqa: N818 -- not an error: the run saved its state and left, as it was asked to
    """The run was asked to stop and has saved everything; `step` is where it will go on."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"stopped at step {step} ({reason})")
        self.step, self.reason = step, reason


def train(
    run: RunState,
    *,
    settings: TrainSettings,
    hyperparameters: Callable[[int], Hyperparameters],
    train_step: TrainStep,
    loader: Loader,
    saving: SavingPlan,
    events: EventLog,
    control: Control,
    profiler: Profiler,
    on_milestone: Callable[[RunState, str], None],
    on_progress: Callable[[int, float, float | None], None] = lambda step, tokens_per_second, loss: None,
    on_alarm: Callable[[Alarm], None] = lambda alarm: None,
    rows: HostRows | None = None,
    validation: Validation | None = None,
    is_resumed: bool = False,
) -> RunState:
    """Takes updates from `run.step` to `settings.until_step` and returns the state there, published.

    Args:
        hyperparameters: What the update that follows so many finished ones is told: a function of that step alone.
        on_milestone: Called with the run (its arrays may be used up) and the folder, relative to the output, of
            each permanent checkpoint once it is complete, the last step's included.
        on_progress: Called now and then with step, tokens a second and the newest loss; None before one is known.
        on_alarm: Called, on each host, with what a monitor finds wrong; the log and the event log have it already.
        rows: What this host reads of each batch, where there are several; None reads all of it.
        validation: Measured where it is due; None measures nothing.
        is_resumed: Whether `run` lies where the next attempt looks for it: a stop before the first update does not
            save it once more.

    Raises:
        TrainingStopped: `control` asked for it; a checkpoint of that step is complete.
        NonFiniteError: an update gave a loss or a norm that is not finite, and no skip rule left it out.
        NoTargetsError: a batch had nothing to predict, and no skip rule left it out.
        SkippedTooOftenError: as many updates in a row were left out as the skip rule allows.
        BitsPerByteError: the loss on held-out text is not finite, or there is no such text.
    """
    if run.step > settings.until_step:
        raise ValueError(f"until_step is {settings.until_step} and the state is of step {run.step}: nothing to train.")
    if (settings.skip_rule.window_steps if settings.skip_rule else 0) != run.state.skip_window_steps:
        raise ValueError(
            f"skip_rule is {settings.skip_rule} and the state has a history of {run.state.skip_window_steps} steps; "
            "let one enter or leave by `run_state.continued`."
        )
    monitors = Monitors.resumed(run.metrics, settings.begins_anew_at, first_loss=settings.first_loss)
    doubted_step = max([monitors.last_doubted_step, *run.metrics.skipped_steps[-1:]])
    saver = Saver(saving, events, on_milestone, begin_step=run.step, doubted_step=doubted_step)
    meter = Meter(
        until_step=settings.until_step, tokens_per_step=settings.tokens_per_step, events=events, on_progress=on_progress
    )
    watchdog = Watchdog(on_hang=lambda step, seconds: events.write("hang", step=step, waited_seconds=round(seconds, 1)))
    figures = Figures(run, settings, loader, monitors, saver, watchdog, events, on_alarm)
    pace = Pace(is_shared=jax.default_backend() == "cpu")
    begin_step = run.step
    placed: Callable[[Any], Any] = (lambda batch: batch) if rows is None else rows.placed

    def leave() -> NoReturn:
        figures.fetch()
        if saver.last_step != run.step and not (is_resumed and run.step == begin_step):
            saver.begin(run)
        saver.finish()
        events.write("stop", step=run.step, consumed_tokens=run.consumed_tokens, reason=control.reason)
        raise TrainingStopped(run.step, control.reason)

    def leave_if_asked() -> None:
        """While a batch is waited for."""
        if control.is_asked():
            # The others come to this question before the same update, with or without its batch.
            control.order(run.step, until_step=settings.until_step)
            leave()

    def obey(order: Order) -> None:
        """Before the update that follows `run`."""
        nonlocal saving
        step = run.step
        if order.word == Word.SAVE_AND_EXIT:
            leave()
        elif order.word == Word.PROFILE:
            figures.fetch()  # the device has ended what came before
            profiler.begin(step, settings.until_step, order)
        elif order.word == Word.PUBLISH:
            saving = dataclasses.replace(saving, wanted_steps=saving.wanted_steps | {order.step})
            if order.step > step + 1:  # else it is answered when it is there
                order.answer(f"it will publish step {order.step:,}, and is at {step:,}")
        elif order.word == Word.SAVE and step == saver.last_step:
            with meter.left_out():
                saver.finish()
            order.answer(f"step {step:,} is saved already: {saver.last_path}")
        elif order.word == Word.SAVE and step == begin_step:
            order.refuse(f"it has made nothing since step {step:,}, where it began")
        elif order.word == Word.SAVE:
            figures.fetch()  # a state is saved only if every update behind it was finite
            with meter.left_out():
                saver.begin(run, on_complete=lambda path: order.answer(f"saved step {step:,}: {path}"))
        for request in order.requests:
            events.write("told", step=step, said=request.said)

    def validate_if_due() -> bool:
        """Before the state can be saved: what the text of its own sources refuses must not be published."""
        if validation is None or not validation.is_due(run.step):
            return False
        figures.fetch()  # an update that cannot stand is told of itself, and not of what it did to held-out text
        with meter.left_out():
            validation.measure(run)
        return True

    def tell_progress(*, now: bool = False) -> None:
        """Of updates that have ended: the loop is some ahead of the device."""
        step = figures.ended_step
        consumed_tokens = run.consumed_tokens - (run.step - step) * settings.tokens_per_step
        meter.tick(step, consumed_tokens, figures.loss, now=now)

    with watchdog.watching(), control.listening() as hears_signals:
        events.write("begin", step=run.step, consumed_tokens=run.consumed_tokens, hears_signals=hears_signals)
        try:
            validate_if_due()
            if run.step == settings.until_step or run.step in saving.wanted_steps:
                # A temporary checkpoint lies where the run is to end now, or another one to start.
                saver.begin(run, is_milestone=True)
            with loader.prefetched(
                run.data_position,
                range(run.step, settings.until_step),
                settings.global_batch_size,
                PREFETCH_BATCHES,
                rows=slice(None) if rows is None else rows.rows,
                feedback=figures.feedback,
                while_waiting=leave_if_asked,
            ) as batches:
                while run.step < settings.until_step:
                    step, batch, position = next(batches)
                    order = control.order(step, until_step=settings.until_step, is_save_due=saver.is_due())
                    obey(order)
                    meter.note_wait(step, batches)
                    told = hyperparameters(step)
                    tokens, segment_ids = placed(batch.tokens), placed(batch.segment_ids)
                    with watchdog.awaits(step + 1), jax.profiler.StepTraceAnnotation("update", step_num=step + 1):
                        state, metrics = train_step(run.state, tokens, segment_ids, told)
                    # Not before a batch is there: it may ask for the end of a cache that is being built.
                    for source in sorted(loader.exhausted(position) - loader.exhausted(run.data_position)):
                        events.write("exhausted", step=step + 1, source=source)
                    consumed_tokens = run.consumed_tokens + settings.tokens_per_step
                    after = RunState(state, step + 1, consumed_tokens, position, figures.metrics, figures.source_losses)
                    figures.add(run, after, batch, metrics, told.learning_rate)
                    run = after
                    is_validated = validate_if_due()
                    is_milestone = saving.is_milestone(run.step, settings.until_step)
                    is_saved = is_milestone or saver.is_due_at(run.step)
                    is_profiled = profiler.is_due_at(run.step)
                    figures.fetch(all_but=0 if is_saved or is_profiled else figures.late_steps)
                    if is_saved:
                        on_complete = functools.partial(order.answer_published, run.step)
                        with meter.left_out():
                            saver.begin(run, is_milestone=is_milestone, on_complete=on_complete)
                    if is_profiled:
                        with meter.left_out():
                            profiler.end()
                    saver.poll()
                    tell_progress()
                    is_held_up = order.word != Word.GO_ON or batches.last_wait_seconds > WAIT_SECONDS
                    if is_held_up or is_validated or is_saved or is_profiled or settings.is_digested(run.step):
                        pace.interrupt()
                    for alarm in pace.end_update(run.step):
                        figures.raise_alarm(alarm)
            with meter.left_out():
                saver.end(run)
        except TrainingStopped:
            raise
        except Exception as error:
            saver.finish_after(error, **(error.facts if isinstance(error, BadBatchError) else {}))
            raise
        finally:
            profiler.close()
        tell_progress(now=True)
    events.write("end", step=run.step, consumed_tokens=run.consumed_tokens)
    return run
