"""Train phase: one leg of a run, from the state its predecessor left to `until_step`."""

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import StepContext, step
from marin_dag.run.context import StepStopped
from marin_dag.run.interrupts import DriverHandler
from marin_dag.values.fields import identity_fields
from steps.compile_remarks import ToldOfCompile
from steps.joined_mesh import joined_mesh
from steps.machine_checks import check_resources, phase_shape
from steps.phase_checks import check_config
from steps.phase_config import TrainPhaseConfig, begins_anew_at, hyperparameters
from steps.phase_cost import phase_cost
from steps.phase_requests import WORDS, requests_of
from steps.phase_result import TrainPhaseResult, result_of, skipped_steps
from steps.taken_kernels import TakenKernels, refuse_wrong_kernels, take_kernels

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from runtime.training.run_state import RunState

UNTOLD_FIELDS = {"start", "restore", "skip_batches", "caches", "replay"}
"""Not written into checkpoints, as execution is not, and where a run stops: a milestone must not tell how its phase
came to it, or what its inputs were called."""

# As TemporaryCheckpoints names them; that module is too heavy for a plan to import.
TEMPORARY_CHECKPOINT = re.compile(r"temporary/step-(\d{10})-epoch-\d{6}/checkpoint/manifest\.json")


def _resumes_at(paths: Sequence[str]) -> list[int]:
    """Steps of the complete temporary checkpoints among the files of a work folder."""
    return [int(match[1]) for path in paths if (match := TEMPORARY_CHECKPOINT.fullmatch(path))]


# No `packages`, although a compiler decides the last bits of an update: a run outlives many versions of JAX, and the
# checkpoints of one in progress would be another trajectory's after the first upgrade. The versions are in each record,
# and what an upgrade changes is found by resuming a run under both. Steps that are cheap to redo do name JAX.
@step(
    policy="tracked", resources=Cpu(2), continues="start", check=check_config, check_on=check_resources,
    cost=phase_cost, resumes_at=_resumes_at, hears=WORDS,
)  # fmt: skip
def train_phase(config: TrainPhaseConfig, context: StepContext) -> TrainPhaseResult:
    """Trains to `until_step` from the newest state of this trajectory, or from `start`, or from scratch."""
    import jax

    from runtime.parallel.host_rows import host_rows
    from runtime.parallel.hosts import Agreement
    from runtime.tracking.events import EventLog
    from runtime.tracking.log_names import log_name
    from runtime.training.control import Control
    from runtime.training.loop import TrainingStopped, train
    from runtime.training.monitors import Alarm, first_loss_of
    from runtime.training.profiling import Profiler
    from runtime.training.saving import Saver, SavingPlan
    from runtime.training.settings import TrainSettings
    from runtime.training.stop_notice import StopNotice
    from runtime.training.temporary import TemporaryCheckpoints
    from runtime.training.train_step import ProgramOptions, build_train_step
    from steps.phase_data import loader_of, skip_batches, warn_about_mixture, warn_about_skip_rule
    from steps.phase_execution import execution, tell_of_other_execution, tell_what_a_kill_loses
    from steps.phase_state import first_state, newest_state, own_state, publish_passed
    from steps.phase_validation import validation_of

    published = context.milestones()
    if config.until_step in published:
        return published[config.until_step].result
    host, begin_step = context.host, _begin_of_trajectory(config, context.digest)
    mesh = joined_mesh(
        context,
        replica_parallel=config.replica_parallel,
        model_parallel=config.model_parallel,
        context_parallel=config.context_parallel,
    )
    kernels = _take_kernels(config, mesh)
    how = execution(config, context, mesh, kernels)
    context.computed_with(**how)
    train_step = build_train_step(
        config.model,
        config.rope,
        mesh,
        ProgramOptions.of(config, attention_kernel=kernels.attention, loss_kernel=kernels.loss),
    )
    temporary = TemporaryCheckpoints(f"{context.work_path}/temporary", context.lease_epoch)
    with EventLog(f"{context.work_path}/events/{log_name(context.attempt, host.index)}") as events:
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

        def publish(run: "RunState", folder: str) -> None:
            context.publish(run.step, folder, result_of(run, config.averages, begin_step=begin_step))

        def publish_as_it_is(run: "RunState") -> None:
            context.log.info("step %d, which an earlier attempt saved, is published as it is", run.step)
            Saver(saving, events, publish, begin_step=run.step).publish(run)

        wanted = frozenset(context.wanted_milestones) - published.keys()
        saving = SavingPlan(
            temporary=temporary,
            checkpoint_every_steps=config.checkpoint_every_steps,
            checkpoint_every_seconds=config.checkpoint_every_seconds,
            certify_every_steps=config.certify_every_steps,
            output_folder=context.output_path,
            publish_every_steps=config.publish_every_steps,
            wanted_steps=wanted,
            notice_seconds=context.notice_seconds,
            remark=context.remark,
            facts=config.model_dump(mode="json", include={*identity_fields(TrainPhaseConfig)} - UNTOLD_FIELDS),
        )
        newest = newest_state(config, published, temporary)
        publish_passed(config, newest, mesh, temporary, wanted=wanted, publish=publish_as_it_is)
        own = own_state(config, newest, published, mesh, temporary, events)
        begun = first_state(config, mesh, events) if own is None else own
        tell_of_other_execution(config, context, begun, how, events)
        loader = loader_of(config, context)
        run = skip_batches(config, context, begun.run, loader, events) if own is None else own.run
        warn_about_mixture(config, context, step=run.step, drawn_before=run.data_position.consumed)
        warn_about_skip_rule(config, context, begin=begin_step)
        resumed = {} if own is None else {"resumed_at": run.step}
        alarms: list[Alarm] = []

        def show(step: int, tokens_per_second: float, loss: float | None) -> None:
            known = {} if loss is None else {"loss": loss}
            alarmed = {"alarms": len(alarms)} if alarms else {}
            figures = {"tokens_per_second": tokens_per_second, **known, **resumed, **alarmed}
            context.progress(step, config.until_step, "steps", begin=config.begin_step, **figures)

        settings = TrainSettings(
            until_step=config.until_step,
            sequence_length=config.sequence_length,
            global_batch_size=config.global_batch_size,
            skip_rule=config.skip,
            digest_every_steps=config.digest_every_steps,
            norms_every_steps=config.norms_every_steps,
            begins_anew_at=lambda step: step <= begin_step or begins_anew_at(config, step),
            first_loss=first_loss_of(config.model) if config.start is None else None,
        )
        context.log.info(
            "from step %d to %d, %d tokens an update, kernels: attention %s, loss %s (%s), scatter %s",
            *(run.step, config.until_step, config.global_batch_size * config.sequence_length),
            *(kernels.attention, kernels.loss, kernels.reason, config.scatter_kernel),
        )
        blocks = kernels.blocks
        context.log.info(
            "blocks: attention: %s; loss: %s; scatter: %s; remat %s, micro-batches: %d",
            *(blocks["attention"], blocks["loss"], blocks["scatter"], config.remat, config.num_microbatches),
        )
        tell_what_a_kill_loses(config, context)
        _refuse_wrong_kernels(config, context, mesh, kernels)
        stop_notice = None if host.num_hosts == 1 else StopNotice(f"{context.work_path}/stops/{context.attempt}")
        try:
            run = train(
                run,
                settings=settings,
                hyperparameters=functools.partial(hyperparameters, config),
                train_step=ToldOfCompile(train_step, "its update", context),
                loader=loader,
                saving=saving,
                events=events,
                control=Control(
                    context.stop_reason,
                    requests=functools.partial(requests_of, context),
                    agree=Agreement(context.attempt),
                    notice=stop_notice,
                    kept_handlers=(DriverHandler,),
                ),
                on_milestone=publish,
                on_progress=show,
                on_alarm=alarms.append,
                profiler=Profiler(f"{context.work_path}/profiles", events),
                rows=None if host.num_hosts == 1 else host_rows(mesh, config.global_batch_size),
                validation=validation_of(config, context, mesh, events),
                is_resumed=begun.is_own,
            )
        except TrainingStopped as stopped:
            where = f"at step {stopped.step:,} of {config.until_step:,}"
            raise StepStopped(f"{where} ({stopped.reason})") from stopped
        if skipped := skipped_steps(run, begin_step):
            context.log.warning(
                "the skip rule left out %d updates so far, the last at step %d", len(skipped), skipped[-1]
            )
    return result_of(run, config.averages, begin_step=begin_step)


def _take_kernels(config: TrainPhaseConfig, mesh: "Mesh") -> TakenKernels:
    """Those of `take_kernels`, and beside them how gradients are scattered."""
    from runtime.parallel.mesh import devices_of
    from runtime.training.kernel_choice import described_scatter

    shape = phase_shape(config, devices_of(mesh))
    kernels = take_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
    scatter = described_scatter(config.scatter_kernel, mesh, config.model, shape, config.reduce_dtype)
    return kernels._replace(blocks=kernels.blocks | {"scatter": scatter})


def _refuse_wrong_kernels(config: TrainPhaseConfig, context: StepContext, mesh: "Mesh", kernels: TakenKernels) -> None:
    """As `refuse_wrong_kernels`, and where the scatter kernel does not sum right."""
    from runtime.training.scatter_check import refuse_wrong_sums

    if config.scatter_kernel != "xla":
        context.log.info(
            "the sums of the scatter kernel are held against the compiler's; if this is the last line for minutes, "
            "its ring does not close on these machines: stop the run, and set scatter_kernel to 'xla'"
        )
        refuse_wrong_sums(mesh, config.reduce_dtype)
    refuse_wrong_kernels(kernels, mesh)


def _begin_of_trajectory(config: TrainPhaseConfig, digest: str) -> int:
    """`begin_step`, but of a phase that was cut in two that of its first part."""
    if config.start is not None and config.start.digest == digest:
        return config.start.result.begin_step
    return config.begin_step
