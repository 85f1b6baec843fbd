"""The training loop: draws batches, takes steps, and keeps what a kill would otherwise lose.

The loop holds no state but `RunState`, so cutting it anywhere changes nothing: each update depends on the state,
the data position and the absolute step alone. The device is never waited for: figures of an update are fetched
`METRICS_LATE_STEPS` updates later, and a checkpoint holds the loop up only while the state is copied to the host.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from runtime.data.loader import Loader
from runtime.data.mixing.feedback import Feedback
from runtime.optim.skip_rule import SkipRule
from runtime.parallel.host_rows import HostRows
from runtime.tracking.events import EventLog
from runtime.tracking.parts import GRADIENT, NORMS, UPDATE, norms_told
from runtime.training.control import Control, Order, Word
from runtime.training.copies import Copies, begin_comparison, finish_comparison
from runtime.training.digests import begin_digests, finish_digests
from runtime.training.meter import Meter
from runtime.training.monitors import Alarm, FirstLoss, Monitors, never, tell
from runtime.training.norm_places import SEEN_IN_UPDATES, Place, RecentNorms
from runtime.training.pace import Pace
from runtime.training.part_norms import tensors_of
from runtime.training.profiling import Profiler
from runtime.training.run_state import RunState
from runtime.training.saving import Saver, SavingPlan
from runtime.training.train_step import Hyperparameters, TrainStep
from runtime.training.update import BadBatchError, Update, losses_by_source, metrics_row, tell_of_skip
from runtime.training.validation import Validation
from runtime.training.watchdog import Watchdog

METRICS_LATE_STEPS = 2
PREFETCH_BATCHES = 4
WAIT_SECONDS = 0.001
"""Less is no wait for a batch."""


class TrainingStopped(Exception):  # noqa: N818 -- not an error: the run saved its state and left, as it was asked to
    """The run was asked to stop and has saved everything; `step` is where it will go on."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"stopped at step {step} ({reason})")
        self.step, self.reason = step, reason


class _AskedToStop(Exception):  # noqa: N818 -- not an error
    """Raised in the loop's thread while it waits for a batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What the loop goes by itself; a phase's own config has the same names (steps/train_phase.py)."""

    until_step: int
    sequence_length: int
    global_batch_size: int
    skip_rule: SkipRule | None = None
    """None where the state holds no history."""
    digest_every_steps: int = 0
    """Distance of the digests of the parameters in the event log, which gets one at the last step too; 0: none."""
    norms_every_steps: int = 0
    """Distance of the norms by part in the event log, which gets those of the last step too; 0: none."""
    begins_anew_at: Callable[[int], bool] = never
    """Whether the level of losses and norms is meant to change with the update that follows so many finished ones."""
    first_loss: FirstLoss | None = None
    """Of a run from scratch, what the monitors hold its first update against."""

    def is_digested(self, step: int) -> bool:
        return self._is_due(self.digest_every_steps, step)

    def are_norms_told(self, step: int) -> bool:
        return self._is_due(self.norms_every_steps, step)

    def _is_due(self, every_steps: int, step: int) -> bool:
        return bool(every_steps) and (step % every_steps == 0 or step == self.until_step)


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

    Raises:
        TrainingStopped: `control` asked for it; a temporary checkpoint of that step is complete.
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
    doubted = max([monitors.last_doubted_step, *run.metrics.skipped_steps[-1:]])
    saver = Saver(saving, events, on_milestone, begin_step=run.step, doubted_step=doubted)
    tokens_per_step = settings.global_batch_size * settings.sequence_length
    meter = Meter(
        until_step=settings.until_step, tokens_per_step=tokens_per_step, events=events, on_progress=on_progress
    )
    watchdog = Watchdog(on_hang=lambda step, seconds: events.write("hang", step=step, waited_seconds=round(seconds, 1)))
    tensors = tensors_of(run.state.params)
    recent_norms, copies = RecentNorms(tensors), Copies(run.step)
    pace = Pace(is_shared=jax.default_backend() == "cpu")
    pending: collections.deque[Update] = collections.deque()
    metrics, losses = run.metrics.copy(), run.source_losses.copy()
    lag_steps = loader.lag_steps
    feedback = Feedback({step: losses.seen(step + 1) for step in range(max(run.step - lag_steps, 0), run.step)})
    # A policy that learns from the last update waits for its figures, and so does the device.
    late_steps = min(METRICS_LATE_STEPS, lag_steps - 1) if lag_steps else METRICS_LATE_STEPS
    begin_step = run.step
    promised: list[Order] = []
    """Whoever wants the very next step is answered when it is there: the next attempt would know nothing of it."""
    steps = range(begin_step, settings.until_step)

    def raise_alarm(alarm: Alarm, place: Place) -> None:
        tell(alarm, events, place)
        on_alarm(alarm)

    def fetch(*, all_but: int) -> None:
        while len(pending) > all_but:
            update = pending.popleft()
            with watchdog.awaits(update.row["step"]):
                update = dataclasses.replace(update, metrics=jax.tree.map(np.asarray, update.metrics))
            norms, rate = np.asarray(update.metrics.part_norms), update.row["learning_rate"]
            placed = functools.partial(recent_norms.place, norms, rate)
            row, of_sources = metrics_row(update, placed), losses_by_source(update, loader)
            if row.is_skipped and settings.skip_rule is not None:
                tell_of_skip(update, row, settings.skip_rule, events, placed())
            if settings.are_norms_told(row.step) and jax.process_index() == 0:  # all hosts have the same
                events.write(NORMS, step=row.step, **norms_told(tensors, norms))
            if update.digests is not None:
                with watchdog.awaits(row.step):
                    digests, apart = finish_digests(update.digests), finish_comparison(update.copies)
                events.write("digest", step=row.step, digest=digests.whole, tensors=digests.tensors)
                for alarm in copies.observe(row.step, apart):
                    raise_alarm(alarm, Place("", {"tensors": apart}))
            metrics.append(row)
            losses.append(of_sources)
            for alarm in monitors.observe(row):
                raise_alarm(alarm, placed(measured=UPDATE if alarm.monitor in SEEN_IN_UPDATES else GRADIENT))
            if not row.is_skipped:
                recent_norms.add(norms, rate)
            saver.note(row, is_in_doubt=monitors.is_in_doubt or copies.are_apart)
            if lag_steps:
                feedback.publish(row.step - 1, losses.seen(row.step))
            meter.loss = row.loss

    def leave(run: RunState) -> NoReturn:
        fetch(all_but=0)
        if saver.last_step != run.step:
            saver.begin(run, None)
        saver.finish()
        events.write("stop", step=run.step, consumed_tokens=run.consumed_tokens, reason=control.reason)
        raise TrainingStopped(run.step, control.reason)

    def carry_out(run: RunState, order: Order) -> None:
        """Before the update that follows `run`."""
        nonlocal saving
        if order.word == Word.SAVE_AND_EXIT:
            leave(run)
        elif order.word == Word.PROFILE:
            fetch(all_but=0)  # the device has ended what came before
            profiler.begin(run.step, settings.until_step, order)
        elif order.word == Word.PUBLISH:
            saving = dataclasses.replace(saving, wanted_steps=saving.wanted_steps | {order.step})
            if order.step > run.step + 1:
                order.answer(f"it will publish step {order.step:,}, and is at {run.step:,}")
            else:
                promised.append(order)
        elif order.word == Word.SAVE and run.step == saver.last_step:
            saver.finish()
            order.answer(f"step {run.step:,} is saved already: {saver.last_path}")
        elif order.word == Word.SAVE and run.step == begin_step:
            order.refuse(f"it has made nothing since step {run.step:,}, where it began")
        elif order.word == Word.SAVE:
            fetch(all_but=0)  # a state is saved only if every update behind it was finite
            saver.begin(run, None, on_complete=lambda path: order.answer(f"saved step {run.step:,}: {path}"))
        for request in order.requests:
            events.write("told", step=run.step, said=request.said)

    def answer_promised(step: int, path: str) -> None:
        for order in [order for order in promised if order.step <= step]:
            order.answer(f"published step {order.step:,}: {path}")
            promised.remove(order)

    def validate_if_due(run: RunState) -> None:
        """Before the state can be saved: what the text of its own sources refuses must not be published."""
        if validation is None or not validation.is_due(run.step):
            return
        fetch(all_but=0)  # an update that cannot stand is told of itself, and not of what it did to held-out text
        with meter.left_out():
            validation.measure(run)

    def hear_while_waiting() -> None:
        if control.is_asked():
            raise _AskedToStop

    def advance(run: RunState) -> RunState:
        with loader.prefetched(
            run.data_position,
            steps,
            settings.global_batch_size,
            PREFETCH_BATCHES,
            rows=slice(None) if rows is None else rows.rows,
            feedback=feedback,
            while_waiting=hear_while_waiting,
        ) as batches:
            while True:
                try:
                    step, batch, position = next(batches)
                except StopIteration:
                    break
                except _AskedToStop:
                    # The others come to this question before the same update, with or without its batch.
                    control.order(run.step, until_step=settings.until_step)
                    leave(run)
                order = control.order(run.step, until_step=settings.until_step, is_save_due=saver.is_due())
                carry_out(run, order)
                meter.note_wait(step, batches)
                if order.word != Word.GO_ON or batches.last_wait_seconds > WAIT_SECONDS:
                    pace.interrupt()
                told = hyperparameters(step)
                tokens: Any = batch.tokens
                segment_ids: Any = batch.segment_ids
                if rows is not None:
                    tokens, segment_ids = rows.placed(tokens), rows.placed(segment_ids)
                with watchdog.awaits(step + 1), jax.profiler.StepTraceAnnotation("update", step_num=step + 1):
                    state, figures = train_step(run.state, tokens, segment_ids, told)
                for figure in jax.tree.leaves(figures):
                    figure.copy_to_host_async()
                consumed = run.consumed_tokens + tokens_per_step
                row = {
                    "step": step + 1,
                    "consumed_tokens": consumed,
                    "global_batch_size": settings.global_batch_size,
                    "learning_rate": told.learning_rate,
                }
                # Not before a batch is there: it may ask for the end of a cache that is being built.
                for source in sorted(loader.exhausted(position) - loader.exhausted(run.data_position)):
                    events.write("exhausted", step=step + 1, source=source)
                is_digested = settings.is_digested(step + 1)
                digests = begin_digests(state.params) if is_digested else None
                of_copies = begin_comparison(state.params) if is_digested else {}
                pending.append(Update(run.data_position, position, batch, row, figures, digests, of_copies))
                run = RunState(state, step + 1, consumed, position, metrics, losses)
                validate_if_due(run)
                is_milestone = saving.is_milestone(run.step, settings.until_step)
                if is_milestone or saver.is_due_at(run.step):
                    fetch(all_but=0)
                    folder = saving.milestone_folder(run.step) if is_milestone else None
                    saver.begin(run, folder, on_complete=functools.partial(answer_promised, run.step))
                else:
                    fetch(all_but=late_steps)
                if (
                    is_digested
                    or saver.last_step == run.step
                    or (validation is not None and validation.is_due(run.step))
                ):
                    pace.interrupt()
                if profiler.is_due_at(run.step):
                    pace.interrupt()
                    fetch(all_but=0)
                    with meter.left_out():
                        profiler.end()
                saver.poll()
                meter.tick(run)
                for alarm in pace.end_update(run.step):
                    raise_alarm(alarm, Place("", {}))
        return run

    with watchdog.watching(), control.listening() as hears_signals:
        events.write("begin", step=run.step, consumed_tokens=run.consumed_tokens, hears_signals=hears_signals)
        try:
            validate_if_due(run)
            if run.step == settings.until_step or run.step in saving.wanted_steps:
                # A temporary checkpoint lies where the run is to end now, or another one to start.
                saver.begin(run, saving.milestone_folder(run.step))
            if run.step < settings.until_step:
                run = advance(run)
            saver.end(run)
        except TrainingStopped:
            raise
        except Exception as error:
            saver.finish_after(error, **(error.facts if isinstance(error, BadBatchError) else {}))
            raise
        finally:
            profiler.close()
        meter.tick(run, now=True)
    events.write("end", step=run.step, consumed_tokens=run.consumed_tokens)
    return run
