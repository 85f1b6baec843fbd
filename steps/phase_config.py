"""Phase config: all that is told of one leg of a run, and what each of its updates is told of that."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from marin_dag.graph.step import Added, Input, Once, Runtime, StopAt
from marin_dag.values.changes import nearest
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixing.static import Static
from runtime.data.mixture import MixtureSchedule
from runtime.data.packing import Packing
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.architectures import AnyModelConfig
from runtime.model.config import Rope
from runtime.optim.ema import Ema
from runtime.optim.schedule import Schedule, WsdS, placed
from runtime.optim.skip_rule import SkipRule
from runtime.training.timeline import JUMPS
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from runtime.training.train_step import Hyperparameters


class TrainPhaseConfig(BaseModel, frozen=True, extra="forbid"):
    """The whole truth about one phase: what a recipe does not write is inherited, but stands here resolved."""

    start: Input[TrainPhaseResult] | None
    """The phase, at a step of it, whose state this one continues, or an `hf_import`; None starts from scratch."""
    restore: Once[Literal["everything", "everything_but_optimizer", "weights_and_optimizer", "weights"]] = "everything"
    """What to take from `start`, of an import the weights; data position and averages restart where it does not begin
    with "everything". Without the optimiser, moments and count begin at zero."""
    skip_batches: Once[Annotated[int, Added(without=0)]] = Field(default=0, ge=0)
    """Batches of the data left out as the phase begins, after which it draws as if it had taken them: to go around what
    a run spiked on (PaLM, arXiv:2204.02311, section 5.1). They are of the size and mixture of its first update."""
    until_step: StopAt[int] = Field(ge=1)
    """Finished updates since the start of the run at which the phase ends. Moving it later continues the run."""
    model: AnyModelConfig
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
    replay: Input[TrainPhaseResult] | None = None
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

    @field_validator("learning_rate")
    @classmethod
    def _place(cls, schedule: Schedule, info: ValidationInfo) -> Schedule:
        """A schedule without a beginning begins where the phase does."""
        start = info.data.get("start")
        return placed(schedule, 0 if start is None else start.milestone or 0)

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
