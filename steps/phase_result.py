"""Phase result: what a training phase returns, and an import or merge of weights: a phase can start from each."""

from typing import TYPE_CHECKING

from pydantic import BaseModel

from runtime.optim.ema import Ema

if TYPE_CHECKING:
    from runtime.training.run_state import RunState

FINAL_LOSS_STEPS = 20
"""Steps that `TrainPhaseResult.final_loss` is the mean over: one batch alone is too noisy."""


class TrainPhaseResult(BaseModel, frozen=True, extra="forbid"):
    """The result of a phase; paths are relative to its output."""

    begin_step: int = 0
    """Finished training steps when the phase began; for a phase that was cut in two, when its first part began."""
    step: int
    """Finished training steps since the start of the run."""
    consumed_tokens: int
    """Exact number of tokens trained on since the start of the run."""
    checkpoint: str
    metrics: str
    """Parquet with a row for each finished step since the start of the run."""
    source_losses: str = "source_losses.parquet"
    """Parquet with a row for each finished step and source: its share, its sequences and its loss."""
    final_loss: float | None
    """Mean cross-entropy (nats a token) over the last steps of this phase."""
    averages: tuple[Ema, ...] = ()
    """The EMA weights; evaluations use the first unless they name another."""
    num_skipped: int = 0
    """Skipped steps of this phase, without the phases before it."""


def result_of(run: "RunState", averages: tuple[Ema, ...], *, begin_step: int) -> TrainPhaseResult:
    """Return the result of a phase that began at `begin_step`, at the step of `run`."""
    from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES

    return TrainPhaseResult(
        begin_step=begin_step,
        step=run.step,
        consumed_tokens=run.consumed_tokens,
        checkpoint=CHECKPOINT,
        metrics=METRICS,
        source_losses=SOURCE_LOSSES,
        final_loss=run.metrics.mean_loss_of_last(FINAL_LOSS_STEPS, after_step=begin_step),
        averages=averages,
        num_skipped=len(skipped_steps(run, begin_step)),
    )


def skipped_steps(run: "RunState", begin_step: int) -> list[int]:
    """Return the skipped steps after `begin_step`."""
    return [step for step in run.metrics.skipped_steps if step > begin_step]
