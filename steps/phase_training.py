"""Phase training: one attempt at a training phase."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from marin_dag.graph.context import StepStopped
from marin_dag.graph.inputs import Input
from marin_dag.graph.step import StepContext
from marin_dag.ledger.work_files import KEEP_MARKER
from marin_dag.run.interrupts import DriverHandler
from marin_dag.values.fields import identity_fields
from runtime.data.loader import Loader
from runtime.optim.optimizer import chosen
from runtime.parallel.hosts import Agreement, StopNotice, host_rows
from runtime.parallel.mesh import devices_of
from runtime.same_fields import filled_from
from runtime.tracking.events import EventLog, log_name
from runtime.training.control import Action, Control, ControlRequest
from runtime.training.figure_checks import first_loss_of
from runtime.training.kernel_checks import check_loss_kernel, check_sums
from runtime.training.kernel_choice import KernelChoice, scatter_blocks, take_kernels
from runtime.training.loop import LoopParts, TrainingStopped, train
from runtime.training.observer import Alarm, Observer
from runtime.training.profiling import Profiler
from runtime.training.run_state import RunState
from runtime.training.saving import Saver, SavingPlan
from runtime.training.settings import TrainSettings
from runtime.training.temporary import TemporaryCheckpoints
from runtime.training.train_step import ProgramOptions, build_train_step
from steps.joined_mesh import joined_mesh
from steps.machine_checks import kernel_shape_of
from steps.phase_config import REQUESTS, TrainPhaseConfig, hyperparameters, resets_level_at
from steps.phase_data import loader_of, skip_batches, warn_about_mixture, warn_about_skip_rule
from steps.phase_execution import announced_compile, execution, warn_of_other_execution
from steps.phase_result import TrainPhaseResult, result_of, skipped_steps
from steps.phase_state import StartState, first_state, newest_state, own_state, publish_passed
from steps.phase_validation import validation_of

Milestones = Mapping[int, Input[Any]]
"""Published step -> its milestone."""
NOT_IN_FACTS = {"start", "restore", "skip_batches", "caches"}
"""Fields left out of checkpoints: a milestone does not depend on how its phase began, or on names of its inputs."""


def train_to_the_end(config: TrainPhaseConfig, context: StepContext, published: Milestones) -> TrainPhaseResult:
    """Train to `until_step`, which is not `published` yet.

    Raises:
        StepStopped: a stop was requested; everything is saved.
    """
    mesh = joined_mesh(
        context,
        replica_parallel=config.replica_parallel,
        model_parallel=config.model_parallel,
        context_parallel=config.context_parallel,
    )
    kernels = _take_kernels(config, mesh)
    computed_with = execution(config, context, mesh, kernels)
    context.computed_with(**computed_with)
    with EventLog(f"{context.work_path}/events/{log_name(context.attempt, context.host.index)}") as events:
        _write_phase_event(config, context, mesh, kernels, events)
        attempt = _Attempt(config, context, mesh, events, published)
        start, loader = attempt.begin(computed_with)
        _log_beginning(config, context, start.run, kernels)
        _check_kernels(config, context, mesh, kernels)
        run = attempt.train(start, loader, kernels)
    if skipped := skipped_steps(run, attempt.begin_step):
        context.log.warning("the skip rule has skipped %d steps so far, the last at step %d", len(skipped), skipped[-1])
    return result_of(run, config.averages, begin_step=attempt.begin_step)


class _PhaseObserver(Observer):
    """Passes the reports of the training loop on to the engine."""

    def __init__(self, config: TrainPhaseConfig, context: StepContext, begin_step: int) -> None:
        self._config, self._context, self._begin_step = config, context, begin_step
        self._num_alarms = 0
        self.resumed_at: int | None = None

    def on_progress(self, step: int, tokens_per_second: float, loss: float | None) -> None:
        figures = {"loss": loss, "resumed_at": self.resumed_at, "alarms": self._num_alarms or None}
        known = {name: figure for name, figure in figures.items() if figure is not None}
        until, begin = self._config.until_step, self._config.begin_step
        self._context.progress(step, until, "steps", begin=begin, tokens_per_second=tokens_per_second, **known)

    def on_alarm(self, alarm: Alarm) -> None:
        self._num_alarms += 1

    def on_validation(self, step: int, mean_bits_per_byte: Mapping[str, float]) -> None:
        means = ", ".join(f"{mean:.4f} ({which})" for which, mean in mean_bits_per_byte.items())
        self._context.log.info("step %d: %s bits per byte of held-out text, mean over sources", step, means)

    def on_milestone(self, run: RunState, folder: str) -> None:
        self._context.publish(run.step, folder, result_of(run, self._config.averages, begin_step=self._begin_step))

    def on_warning(self, text: str) -> None:
        self._context.warn(text)


class _Attempt:
    """An attempt at a phase: where it begins, and how it trains."""

    def __init__(
        self, config: TrainPhaseConfig, context: StepContext, mesh: Mesh, events: EventLog, published: Milestones
    ) -> None:
        self._config, self._context, self._mesh, self._events = config, context, mesh, events
        self._published = published
        self.begin_step = _begin_of_run(config, context.digest)
        self._observer = _PhaseObserver(config, context, self.begin_step)
        self._saving = _saving_plan(config, context, published)

    def begin(self, computed_with: Mapping[str, str]) -> tuple[StartState, Loader]:
        """Return the state to train from, and the loader of the batches."""
        config, context, temporary = self._config, self._context, self._saving.temporary
        newest = newest_state(config, self._published, temporary)
        wanted = self._saving.wanted_steps
        publish_passed(config, newest, self._mesh, temporary, wanted=wanted, publish=self._publish_saved)
        start = own_state(config, newest, self._published, self._mesh, temporary, self._events)
        if start is None:
            start = first_state(config, self._mesh, self._events)
        warn_of_other_execution(config, context, start, computed_with, self._events)
        loader = loader_of(config, context)
        if start.is_own:
            self._observer.resumed_at = start.run.step
        else:
            start = start._replace(run=skip_batches(config, context, start.run, loader, self._events))
        run = start.run
        warn_about_mixture(config, context, step=run.step, drawn_before=run.data_position.consumed)
        warn_about_skip_rule(config, context, begin=self.begin_step)
        return start, loader

    def train(self, start: StartState, loader: Loader, kernels: KernelChoice) -> RunState:
        config, context, mesh = self._config, self._context, self._mesh
        is_alone = context.host.num_hosts == 1
        options = filled_from(
            config,
            ProgramOptions,
            attention_kernel=kernels.attention,
            loss_kernel=kernels.loss,
            optimizer=chosen(config.optimizer),
        )
        train_step = build_train_step(config.model, config.rope, mesh, options)
        parts = LoopParts(
            hyperparameters=functools.partial(hyperparameters, config),
            train_step=announced_compile(train_step, context),
            loader=loader,
            saving=self._saving,
            events=self._events,
            control=Control(
                context.stop_reason,
                requests=functools.partial(_requests_of, context),
                agree=Agreement(context.attempt),
                notice=None if is_alone else StopNotice(context.attempt),
                kept_handlers=(DriverHandler,),
            ),
            profiler=Profiler(f"{context.work_path}/profiles", self._events),
            observer=self._observer,
            rows=None if is_alone else host_rows(mesh, config.global_batch_size),
            validation=validation_of(config, context, mesh, self._events, self._observer),
        )
        try:
            return train(start.run, _train_settings(config, self.begin_step), parts, is_resumed=start.is_own)
        except TrainingStopped as stopped:
            where = f"at step {stopped.step:,} of {config.until_step:,}"
            raise StepStopped(f"{where} ({stopped.reason})") from stopped

    def _publish_saved(self, run: RunState) -> None:
        """Publish a state that an earlier attempt saved."""
        self._context.log.info("publishing step %d, which an earlier attempt saved", run.step)
        Saver(self._saving, self._events, self._observer, begin_step=run.step).publish(run)


def _requests_of(context: StepContext) -> list[ControlRequest]:
    """Return the requests of users (`tell PHASE save`) without a reply, the oldest first."""
    return [
        ControlRequest(
            request.id,
            Action[request.action.upper()],
            request.milestone,
            request.text,
            functools.partial(context.reply, request),
            functools.partial(context.decline, request),
        )
        for request in context.requests()
        if request.action in REQUESTS
    ]


def _saving_plan(config: TrainPhaseConfig, context: StepContext, published: Milestones) -> SavingPlan:
    return filled_from(
        config,
        SavingPlan,
        temporary=TemporaryCheckpoints(f"{context.work_path}/temporary", context.lease_epoch, KEEP_MARKER),
        output_folder=context.output_path,
        wanted_steps=frozenset(context.wanted_milestones) - published.keys(),
        notice_seconds=context.notice_seconds,
        facts=config.model_dump(mode="json", include={*identity_fields(TrainPhaseConfig)} - NOT_IN_FACTS),
    )


def _train_settings(config: TrainPhaseConfig, begin_step: int) -> TrainSettings:
    return filled_from(
        config,
        TrainSettings,
        skip_rule=config.skip,
        monitors_reset_at=lambda step: step <= begin_step or resets_level_at(config, step),
        first_loss=first_loss_of(config.model) if config.start is None else None,
    )


def _begin_of_run(config: TrainPhaseConfig, digest: str) -> int:
    """Return `begin_step`, or that of the first part of a phase that was cut in two."""
    if config.start is not None and config.start.digest == digest:
        return config.start.result.begin_step
    return config.begin_step


def _take_kernels(config: TrainPhaseConfig, mesh: Mesh) -> KernelChoice:
    """Return the kernels, with the blocks of the scatter kernel among the others'."""
    shape = kernel_shape_of(config, devices_of(mesh))
    kernels = take_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
    scatter = scatter_blocks(config.scatter_kernel, mesh, config.model, shape, config.reduce_dtype)
    return kernels._replace(blocks=kernels.blocks | {"scatter": scatter})


def _check_kernels(config: TrainPhaseConfig, context: StepContext, mesh: Mesh, kernels: KernelChoice) -> None:
    """Raise RuntimeError where a kernel gives wrong numbers on these devices."""
    if config.scatter_kernel != "xla":
        context.log.info(
            "comparing the sums of the scatter kernel with the compiler's; if this stays the last line for minutes, "
            "the kernel's ring does not close on these machines: stop the run, and set scatter_kernel='xla'"
        )
        check_sums(mesh, config.reduce_dtype)
    check_loss_kernel(kernels.loss, mesh)


def _write_phase_event(
    config: TrainPhaseConfig, context: StepContext, mesh: Mesh, kernels: KernelChoice, events: EventLog
) -> None:
    events.write(
        "phase",
        name=context.name,
        digest=context.digest,
        lease_epoch=context.lease_epoch,
        until_step=config.until_step,
        kernels=kernels._asdict() | {"scatter": config.scatter_kernel},
        remat=config.remat,
        num_microbatches=config.num_microbatches,
        mesh=dict(mesh.shape),
        device=str(mesh.devices.flat[0].device_kind),
        jax=jax.__version__,
    )


def _log_beginning(config: TrainPhaseConfig, context: StepContext, run: RunState, kernels: KernelChoice) -> None:
    blocks = "; ".join(f"{name}: {text}" for name, text in kernels.blocks.items())
    context.log.info(
        "from step %d to %d, %d tokens a step, kernels: attention %s, loss %s (%s), scatter %s; blocks: %s; remat %s, "
        "micro-batches: %d",
        *(run.step, config.until_step, config.global_batch_size * config.sequence_length),
        *(kernels.attention, kernels.loss, kernels.reason, config.scatter_kernel, blocks),
        *(config.remat, config.num_microbatches),
    )
    notice = context.notice_seconds
    context.log.info(
        "a kill without a save loses the steps after the last save: at most %g s (checkpoint_every_seconds) plus the "
        "duration of a save; notice before a kill: %s",
        *(config.checkpoint_every_seconds, "unknown (--notice SECONDS)" if notice is None else f"{notice:g} s"),
    )
