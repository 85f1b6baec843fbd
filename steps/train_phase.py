"""Train phase: one leg of a run, from the state its predecessor left to `until_step`."""

from typing import Literal

from marin_dag.step import Input, Runtime, StopAt
from pydantic import BaseModel, Field

from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LlamaConfig, Rope
from runtime.optim.ema import Ema
from runtime.optim.schedule import Schedule
from steps.tokenize import TokenizeResult


class TrainPhaseResult(BaseModel, frozen=True, extra="forbid"):
    """What a phase leaves behind; paths are relative to its output."""

    step: int
    """Finished updates since the start of the run."""
    consumed_tokens: int
    """Tokens drawn since the start of the run, exact under every batch schedule."""
    checkpoint: str
    metrics: str
    """Parquet, one row a finished update of this trajectory."""
    final_loss: float
    """Mean cross-entropy (nats a token) over the last updates."""
    has_average: bool


class TrainPhaseConfig(BaseModel, frozen=True, extra="forbid"):
    """The whole truth about one phase: what a recipe does not write is inherited, but stands here resolved."""

    start: Input["TrainPhaseResult"] | None
    """The phase, at a step of it, whose state this one continues; None starts from scratch."""
    restore: Literal["everything", "weights_and_optimizer", "weights"] = "everything"
    """What to take from `start`; data position and averages restart unless "everything"."""
    until_step: StopAt[int]
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
    average: Ema | None
    z_loss: float = Field(ge=0)
    """Weight of log_normalizer**2 (PaLM, arXiv:2204.02311, section 5)."""
    mixture: MixtureSchedule
    caches: dict[str, Input[TokenizeResult]]
    """Token cache of each source that the mixture names."""
    seed: int
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    acknowledge: tuple[str, ...] = ()
    """Discontinuities against `start` that are meant: field names such as "learning_rate" or "weight_decay"."""
    checkpoint_every_steps: Runtime[int] = 200
    """Distance of temporary checkpoints, which a killed phase resumes from."""
    publish_every_steps: Runtime[int] = 0
    """Distance of permanent milestones, which a branch can start from; 0 publishes the last step only."""
    wandb_project: Runtime[str | None] = None
    """Log to Weights & Biases in offline mode under this project."""
