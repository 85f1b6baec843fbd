"""Train phase: one leg of a run, from the state its predecessor left to `until_step`."""

import functools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from marin_dag.changes import nearest
from marin_dag.context import StepStopped
from marin_dag.fields import identity_fields
from marin_dag.resources import Cpu
from marin_dag.running.interrupts import DriverHandler
from marin_dag.step import Added, Input, Once, Runtime, StepContext, StopAt, step
from runtime.data.mixing.fixed import Static
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import MixtureSchedule
from runtime.data.packing import Packing
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.config import LlamaConfig, Rope
from runtime.optim.ema import Ema
from runtime.optim.schedule import Schedule, WsdS
from runtime.optim.skip_rule import SkipRule
from runtime.training.timeline import JUMPS
from steps.compile_remarks import ToldOfCompile
from steps.joined_mesh import joined_mesh
from steps.machine_checks import check_resources, phase_shape
from steps.phase_checks import check_config
from steps.phase_cost import phase_cost
from steps.phase_requests import WORDS, requests_of
from steps.phase_result import TrainPhaseResult, result_of, skipped_steps
from steps.taken_kernels import TakenKernels
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from runtime.training.run_state import RunState
    from runtime.training.train_step import Hyperparameters

UNTOLD_FIELDS = {"start", "restore", "skip_batches", "caches", "replay"}
"""Not written into checkpoints, as execution is not, and where a run stops: a milestone must not tell how its phase
came to it, or what its inputs were called."""

# As TemporaryCheckpoints names them; that module is too heavy for a plan to import.
TEMPORARY_CHECKPOINT = re.compile(r"temporary/step-(\d{10})-epoch-\d{6}/checkpoint/manifest\.json")


class TrainPhaseConfig(BaseModel, frozen=True, extra="forbid"):
    """The whole truth about one phase: what a recipe does not write is inherited, but stands here resolved."""

    start: Input["TrainPhaseResult"] | None
    """The phase, at a step of it, whose state this one continues, or an `hf_import`; None starts from scratch."""
    restore: Once[Literal["everything", "everything_but_optimizer", "weights_and_optimizer", "weights"]] = "everything"
    """What to take from `start`, of an import the weights; data position and averages restart where it does not begin
    with "everything". Without the optimiser, moments and count begin at zero."""
    skip_batches: Once[Annotated[int, Added(without=0)]] = Field(default=0, ge=0)
    """Batches of the data left out as the phase begins, after which it draws as if it had taken them: to go around what
    a run spiked on (PaLM, arXiv:2204.02311, section 5.1). They are of the size and mixture of its first update."""
    until_step: StopAt[int] = Field(ge=1)
    """Finished updates since the start of the run at which the phase ends. Moving it later continues the run."""
    model: LlamaConfig
    rope: Rope
    sequence_length: int = Field(ge=2)
    global_batch_size: int = Field(ge=1)
    """Sequences an update, over all devices."""
    learning_rate: Schedule
    weight_decay: float = Field(ge=0)
    """Decoupled; not applied to embeddings, norms and biases."""
    b1: float = Field(ge=0, lt=1)
    b2: float = Field(ge=0, lt=1)
    eps: float = Field(gt=0)
    max_norm: float = Field(gt=0)
    """Gradients are scaled down to this global norm."""
    averages: tuple[Ema, ...] = ()
    """Kept beside the weights, each under a name of its own: `(Ema(0.995), Ema(0.9999, name="slow"))`. By the first one
    the report compares phases."""
    z_loss: float = Field(ge=0)
    """Weight of log_normalizer**2 (PaLM, arXiv:2204.02311, section 5)."""
    mixture: MixtureSchedule
    mixing: MixingPolicy = Static()
    """What makes shares of the mixture: the mixture itself, or a policy that learns from the losses by source."""
    replay: Input["TrainPhaseResult"] | None = None
    """Draw from each source what this phase, at a step of it, drew in the same updates; `mixing` is then not asked."""
    caches: dict[str, Input[TokenizeResult]]
    """Token cache of each source that the mixture names; one that is `growing()` is read while it is being built."""
    packing: Packing = "concatenate"
    """What a sequence is made of."""
    seed: int = Field(ge=0, lt=2**32)
    """Of the first weights and of the data's order. The key of the weights holds 32 bits of it, and drops the rest."""
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    reduce_dtype: Literal["bfloat16", "float32"] = "float32"
    """What gradients are summed in over all devices."""
    skip: SkipRule | None = Field(
        default=None, examples=[{"window_steps": 128, "sigma": 6.0, "warmup_steps": 64, "max_consecutive": 8}]
    )
    """Which updates are left out; None takes every one, and one that is not finite stops the run."""
    acknowledge: Once[Runtime[tuple[str, ...]]] = ()
    """Discontinuities against `start` that are meant: field names such as "learning_rate" or "weight_decay"."""
    checkpoint_every_steps: Runtime[int] = Field(default=200, ge=1)
    """Distance of temporary checkpoints, which a killed phase resumes from."""
    checkpoint_every_seconds: Runtime[float] = Field(default=600.0, gt=0)
    """Time between two of them, whichever comes first: what a killed phase may lose."""
    certify_every_steps: Runtime[int] = Field(default=1000, ge=1)
    """Distance of those among them that stay for good, once enough good updates have followed: to go back to."""
    publish_every_steps: Runtime[int] = Field(default=0, ge=0)
    """Distance of permanent milestones, which a branch can start from; 0 publishes the last step only."""
    give_up_seconds: Runtime[float] = Field(default=900.0, ge=0)
    """How long to wait for a block of a growing cache while nobody is building it."""
    replica_parallel: Runtime[int] = Field(default=1, ge=1)
    """Copies of the parameters, moments and averages in each TPU slice, or over all hosts of GPUs or CPUs: what a copy
    sends then stays within a part of them, and each device holds more. As many as hosts keeps FSDP within a host."""
    model_parallel: Runtime[int] = Field(default=1, ge=1)
    """Devices that share the heads and columns of each layer; neighbours."""
    context_parallel: Runtime[int] = Field(default=1, ge=1)
    """Devices that share the tokens of each row: for rows too long for one device."""
    num_microbatches: Runtime[int] = Field(default=1, ge=1)
    """Parts of each device's share of the batch, one after the other, whose gradients are summed: for less memory."""
    attention_kernel: Runtime[str | None] = None
    """None takes the fastest that is known to be right where the phase runs; a name is taken or refused."""
    loss_kernel: Runtime[str | None] = None
    """As `attention_kernel`."""
    scatter_kernel: Runtime[ScatterKernel] = "xla"
    """How gradients of layers are scattered: "pallas_tpu" hides that where the compiler cannot (v5e), or is refused."""
    # On a CPU too recomputing a layer costs less than the fresh pages that its activations would take, unless
    # micro-batches make them few.
    remat: Runtime[Literal["none", "dots", "full"]] = "full"
    """What the backward pass finds saved: "none" is everything, "full" the input of each layer only."""
    digest_every_steps: Runtime[int] = Field(default=100, ge=0)
    """Distance of the digests of the parameters in the event log, by which a replay proves itself; 0 writes none."""
    norms_every_steps: Runtime[int] = Field(default=100, ge=0)
    """Distance of the norms of gradient, update and parameters by tensor and layer in the event log, for `curves`; 0
    writes none. An alarm says where in the model it is from all the same."""
    validate_every_steps: Runtime[int] = Field(default=0, ge=0)
    """Distance of measurements of held-out text, of weights and averages; one at the last step too. 0: none. They
    change nothing of the run, and stand in its event log."""
    validation_tokens_per_source: Runtime[int] = Field(default=2**17, ge=1)
    """Of the held-out text of each cache, spread evenly."""

    @property
    def begin_step(self) -> int:
        """Finished updates of the state that it starts from; 0 of weights that were not trained here."""
        return 0 if self.start is None else self.start.milestone or 0

    @field_validator("acknowledge")
    @classmethod
    def _refuse_what_is_never_a_jump(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        for field in fields:
            if field not in JUMPS:
                raise ValueError(
                    f"{field!r} is no field whose change a run feels at once; those are {', '.join(JUMPS)}."
                    f"{nearest(field, JUMPS)}"
                )
        return fields

    @field_validator("averages")
    @classmethod
    def _refuse_averages_that_cannot_be_told_apart(cls, averages: tuple[Ema, ...]) -> tuple[Ema, ...]:
        names = [average.name for average in averages]
        if len(set(names)) < len(names):
            raise ValueError(
                f'they are called {", ".join(names)}; each needs a name of its own, such as Ema(0.9999, name="slow").'
            )
        return averages


def begins_anew_at(config: TrainPhaseConfig, step: int) -> bool:
    """Whether the skip rule and the monitors begin anew with the update that follows `step` finished ones.

    Another segment of the mixture has another loss, and a learning rate back at its peak raises it: a level that is
    meant is nothing to be left out.
    """
    rate = config.learning_rate
    has_jumped = isinstance(rate, WsdS) and rate.jumps_at(step)
    return has_jumped or any(segment.start_step == step for segment in config.mixture.segments)


def hyperparameters(config: TrainPhaseConfig, step: int) -> "Hyperparameters":
    """What the update that follows `step` finished ones is told of the phase: here a schedule becomes a number."""
    from runtime.training.train_step import Hyperparameters

    rule = config.skip
    return Hyperparameters(
        learning_rate=config.learning_rate(step),
        weight_decay=config.weight_decay,
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        max_norm=config.max_norm,
        z_loss=config.z_loss,
        skip_sigma=math.inf if rule is None else rule.sigma,
        skip_warmup_steps=0 if rule is None else rule.warmup_steps,
        skip_begins_anew=begins_anew_at(config, step),
        average_decays=tuple(each.kept_by(step) for each in sorted(config.averages, key=lambda each: each.name)),
    )


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

    from runtime.kernels.choice import chosen_kernels, described_blocks, described_scatter, refuse_unlike_hosts
    from runtime.parallel.host_rows import host_rows
    from runtime.parallel.hosts import Agreement
    from runtime.parallel.mesh import devices_of
    from runtime.parallel.ratio_check import refuse_wrong_ratios
    from runtime.parallel.scatter_check import refuse_wrong_sums
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
    from steps.phase_data import leave_out, loader_of, warn_of_the_mixture, warn_of_the_skip_rule
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
    shape = phase_shape(config, devices_of(mesh))
    kernels = chosen_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
    refuse_unlike_hosts(kernels)
    blocks = described_blocks(kernels.attention, kernels.loss, shape)
    blocks["scatter"] = described_scatter(config.scatter_kernel, mesh, config.model, shape, config.reduce_dtype)
    taken = TakenKernels(**kernels._asdict(), blocks=blocks)
    how = execution(config, context, mesh, taken)
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
            kernels=taken._asdict() | {"scatter": config.scatter_kernel},
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
        run = leave_out(config, context, begun.run, loader, events) if own is None else own.run
        warn_of_the_mixture(config, context, step=run.step, drawn_before=run.data_position.consumed)
        warn_of_the_skip_rule(config, context, begin=begin_step)
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
        context.log.info(
            "blocks: attention: %s; loss: %s; scatter: %s; remat %s, micro-batches: %d",
            *(blocks["attention"], blocks["loss"], blocks["scatter"], config.remat, config.num_microbatches),
        )
        tell_what_a_kill_loses(config, context)
        if config.scatter_kernel != "xla":
            context.log.info(
                "the sums of the scatter kernel are held against the compiler's; if this is the last line for minutes, "
                "its ring does not close on these machines: stop the run, and set scatter_kernel to 'xla'"
            )
            refuse_wrong_sums(mesh, config.reduce_dtype)
        if kernels.loss == "mosaic_gpu":
            refuse_wrong_ratios(mesh)
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


def _begin_of_trajectory(config: TrainPhaseConfig, digest: str) -> int:
    """`begin_step`, but of a phase that was cut in two that of its first part."""
    if config.start is not None and config.start.digest == digest:
        return config.start.result.begin_step
    return config.begin_step
