"""Phase config: the settings of one phase of a run, and the hyperparameters of each of its training steps."""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from marin_dag.graph.step import Added, Input, Once, Runtime, StopAt
from marin_dag.values.changes import nearest
from marin_dag.values.fields import markers
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixture import MixtureSchedule
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.architectures import AnyModelConfig
from runtime.model.config import Rope
from runtime.optim.ema import Ema
from runtime.optim.optimizer import ChosenOptimizer
from runtime.optim.schedule import Schedule, WsdS, placed
from runtime.optim.skip_rule import SkipRule
from runtime.training.restore import Restore
from steps.gold_answers import GoldAnswersResult
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from runtime.training.train_step import Hyperparameters


REQUESTS = ("save", "publish", "profile")
"""Requests of users that a phase takes, besides "stop"."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Marks a field that changes the numbers of a run, so that timelines and reports list its changes."""

    is_abrupt: bool = False
    """A change takes effect at once, so the phase has to acknowledge it."""


GRADUAL, ABRUPT = Setting(), Setting(is_abrupt=True)


class TrainPhaseConfig(BaseModel, frozen=True, extra="forbid"):
    """All settings of one phase, inherited ones included."""

    start: Input[TrainPhaseResult] | None
    """The phase, at one of its steps, whose state this phase continues, or an import or merge of weights; None starts
    from scratch."""
    restore: Once[Annotated[Restore, ABRUPT]] = "everything"
    """State to restore from `start`; only the weights of an import or merge. Unless the value begins with "everything",
    data position and averages restart. Without the optimizer, moments and count start at zero."""
    skip_batches: Once[Annotated[int, Added(without=0), ABRUPT]] = Field(default=0, ge=0)
    """Batches to skip as the phase begins, with the size and mixture of its first step: the rollback from a spike of
    PaLM (arXiv:2204.02311, section 5.1)."""
    until_step: StopAt[int] = Field(ge=1)
    """Finished training steps since the start of the run at which the phase ends. A later value continues the run."""
    model: AnyModelConfig
    rope: Annotated[Rope, ABRUPT]
    sequence_length: Annotated[int, ABRUPT] = Field(ge=2)
    """Tokens of a row. The data position counts rows, so a phase with another length restarts the data."""
    global_batch_size: Annotated[int, GRADUAL] = Field(ge=1)
    """Sequences per training step, over all devices."""
    learning_rate: Annotated[Schedule, GRADUAL]
    """Abrupt where the rates of two phases differ at their boundary."""
    optimizer: Annotated[ChosenOptimizer, Added(without=None), ABRUPT] = Field(
        default=None, examples=[{"kind": "muon", "consistent_rms": 0.2}]
    )
    """None is AdamW. No optimizer can use the state of another, so a change needs a `restore` without that state."""
    weight_decay: Annotated[float, ABRUPT] = Field(ge=0)
    """Decoupled; not applied to embeddings, norms and biases."""
    b1: Annotated[float, ABRUPT] = Field(ge=0, lt=1)
    b2: Annotated[float, ABRUPT] = Field(ge=0, lt=1)
    eps: Annotated[float, ABRUPT] = Field(gt=0)
    max_norm: Annotated[float, ABRUPT] = Field(gt=0)
    """Gradients are scaled down to this global norm."""
    averages: Annotated[tuple[Ema, ...], GRADUAL] = ()
    """EMA weights, each with its own name: `(Ema(0.995), Ema(0.9999, name="slow"))`. Reports compare phases by the
    first."""
    z_loss: Annotated[float, GRADUAL] = Field(ge=0)
    """Weight of log_normalizer**2 (PaLM, arXiv:2204.02311, section 5)."""
    mixture: Annotated[MixtureSchedule, GRADUAL]
    mixing: Annotated[MixingPolicy, ABRUPT] = Static()
    """The policy that sets the shares of the sources: as written, or learned from their losses. A change loses what the
    policy has learned."""
    caches: Annotated[dict[str, Input[TokenizeResult]], ABRUPT]
    """Token cache of each source of the mixture; a `growing()` one is read while it is built. The data position counts
    rows by cache, so another cache of a source is read from its beginning."""
    seed: Annotated[int, ABRUPT] = Field(ge=0, lt=2**32)
    """Seed of the first weights and of the order of the data; the key of the weights holds 32 bits."""
    compute_dtype: Annotated[Literal["bfloat16", "float32"], ABRUPT] = "bfloat16"
    reduce_dtype: Annotated[Literal["bfloat16", "float32"], ABRUPT] = "float32"
    """Dtype in which gradients are summed over all devices."""
    skip: Annotated[SkipRule | None, GRADUAL] = Field(
        default=None, examples=[{"window_steps": 128, "sigma": 6.0, "warmup_steps": 64, "max_consecutive": 8}]
    )
    """The rule that skips steps; None skips none, and a step that is not finite stops the run."""
    acknowledge: Once[Runtime[tuple[str, ...]]] = ()
    """Intended abrupt changes against `start`: names of fields such as "learning_rate" or "weight_decay"."""
    checkpoint_every_steps: Runtime[int] = Field(default=200, ge=1)
    """Steps between temporary checkpoints, which a killed phase resumes from."""
    checkpoint_every_seconds: Runtime[float] = Field(default=600.0, gt=0)
    """Longest time between temporary checkpoints: what a killed phase may lose."""
    keep_good_every_steps: Runtime[int] = Field(default=1000, ge=1)
    """Steps between good checkpoints: temporary ones that enough good steps follow, and that are kept."""
    publish_every_steps: Runtime[int] = Field(default=0, ge=0)
    """Steps between permanent milestones, which a branch can start from; 0 publishes only the last step."""
    give_up_seconds: Runtime[float] = Field(default=900.0, ge=0)
    """Time to wait for a block of a growing cache that no step builds."""
    replica_parallel: Runtime[int] = Field(default=1, ge=1)
    """Copies of parameters, moments and averages in each TPU slice, or over all hosts of GPUs or CPUs. FSDP then stays
    within the devices of one copy, and each device holds more. As many copies as hosts keep FSDP within a host."""
    model_parallel: Runtime[int] = Field(default=1, ge=1)
    """Neighbouring devices that share the heads and columns of each layer."""
    context_parallel: Runtime[int] = Field(default=1, ge=1)
    """Devices that share the tokens of each row, for rows too long for one device."""
    num_microbatches: Runtime[int] = Field(default=1, ge=1)
    """Sequential parts of each device's share of the batch, whose gradients are summed, for less memory."""
    attention_kernel: Runtime[str | None] = None
    """None is the fastest kernel that is known to be right on the devices; an unsuitable name is an error."""
    loss_kernel: Runtime[str | None] = None
    """See `attention_kernel`."""
    scatter_kernel: Runtime[ScatterKernel] = "xla"
    """How gradients of layers are scattered; "pallas_tpu" overlaps it where the compiler cannot (v5e)."""
    # On a CPU too, recomputing a layer costs less than fresh memory pages for its activations, unless micro-batches
    # make them few.
    remat: Runtime[Literal["none", "dots", "full"]] = "full"
    """Recomputation in the backward pass: "none" nothing, "full" all but the input of each layer."""
    digest_every_steps: Runtime[int] = Field(default=100, ge=0)
    """Steps between digests of the parameters in the event log, by which replays are compared; 0 writes none."""
    norms_every_steps: Runtime[int] = Field(default=100, ge=0)
    """Steps between norms of gradient, update and parameters by tensor and layer in the event log, for `curves`; 0
    writes none. Alarms name the part of the model in any case."""
    validate_every_steps: Runtime[int] = Field(default=0, ge=0)
    """Steps between measurements of weights and averages on held-out text, with one at the last step; 0 makes none.
    Measurements are in the event log and do not change the run."""
    validation_tokens_per_source: Runtime[int] = Field(default=2**17, ge=1)
    """Tokens of held-out text from each cache, spread evenly."""
    validation_tasks: Runtime[tuple[Input[GoldAnswersResult], ...]] = ()
    """Tasks whose right answers are measured, in bits per byte, together with the held-out text."""
    sampled_windows_per_source: Runtime[int] = Field(default=2, ge=0)
    """Windows of held-out text from each cache whose tokens' predictions are kept at each validation, for `heat-map`; 0
    keeps none."""

    @property
    def begin_step(self) -> int:
        """Finished training steps of the state that the phase starts from; 0 for weights alone."""
        return 0 if self.start is None else self.start.milestone or 0

    @field_validator("learning_rate")
    @classmethod
    def _place(cls, schedule: Schedule, info: ValidationInfo) -> Schedule:
        """Start a schedule without a first step where the phase starts."""
        start = info.data.get("start")
        return placed(schedule, 0 if start is None else start.milestone or 0)

    @field_validator("acknowledge")
    @classmethod
    def _check_acknowledged_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        for field in fields:
            if field not in ACKNOWLEDGED_FIELDS:
                raise ValueError(
                    f"{field!r} needs no acknowledgement; these fields do: {', '.join(ACKNOWLEDGED_FIELDS)}."
                    f"{nearest(field, ACKNOWLEDGED_FIELDS)}"
                )
        return fields

    @field_validator("averages")
    @classmethod
    def _check_names_of_averages(cls, averages: tuple[Ema, ...]) -> tuple[Ema, ...]:
        names = [average.name for average in averages]
        if len(set(names)) < len(names):
            raise ValueError(
                f'their names are {", ".join(names)}; give each its own, such as Ema(0.9999, name="slow").'
            )
        return averages


_SETTINGS = {
    name: mark for name, marks in markers(TrainPhaseConfig).items() for mark in marks if isinstance(mark, Setting)
}
COMPARED_FIELDS = tuple(sorted(_SETTINGS, key=lambda name: _SETTINGS[name].is_abrupt))
"""Settings that change the numbers of a run, gradual ones first. The model is not among them: it cannot change."""
ABRUPT_FIELDS = tuple(name for name in COMPARED_FIELDS if _SETTINGS[name].is_abrupt)
ACKNOWLEDGED_FIELDS = ("learning_rate", *ABRUPT_FIELDS)
"""Fields that `acknowledge` takes."""


def chosen_settings(config: TrainPhaseConfig) -> dict[str, object]:
    """Return the settings without a default or with another value; caches and `restore` belong to its inputs."""
    fields = TrainPhaseConfig.model_fields
    return {
        name: getattr(config, name)
        for name in COMPARED_FIELDS
        if name not in ("caches", "restore")
        and (fields[name].is_required() or getattr(config, name) != fields[name].default)
    }


def resets_level_at(config: TrainPhaseConfig, step: int) -> bool:
    """Return whether skip rule and monitors reset with the training step after `step` finished ones.

    Another segment of the mixture has another loss, and a learning rate back at its peak raises the loss, both as
    intended.
    """
    rate = config.learning_rate
    has_jumped = isinstance(rate, WsdS) and rate.jumps_at(step)
    return has_jumped or any(segment.start_step == step for segment in config.mixture.segments)


def hyperparameters(config: TrainPhaseConfig, step: int) -> "Hyperparameters":
    """Return the hyperparameters of the training step after `step` finished ones, with schedules as numbers."""
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
        skip_restarts=resets_level_at(config, step),
        average_decays=tuple(each.kept_by(step) for each in sorted(config.averages, key=lambda each: each.name)),
    )
