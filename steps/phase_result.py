"""What a training phase leaves behind; a `hf_import` leaves the same, so that a phase can start from either."""

from typing import TYPE_CHECKING

from pydantic import BaseModel

from runtime.optim.ema import Ema

if TYPE_CHECKING:
    from runtime.training.run_state import RunState

FINAL_LOSS_STEPS = 20
"""`TrainPhaseResult.final_loss` is the mean over as many updates: one batch alone is too noisy to compare."""


class TrainPhaseResult(BaseModel, frozen=True, extra="forbid"):
    """What a phase leaves behind; paths are relative to its output."""

    begin_step: int = 0
    """Finished updates when its trajectory began, of which it is a part where the phase was cut."""
    step: int
    """Finished updates since the start of the run."""
    consumed_tokens: int
    """Tokens trained on since the start of the run, exact under every batch schedule."""
    checkpoint: str
    metrics: str
    """Parquet, one row a finished update of this trajectory."""
    source_losses: str = "source_losses.parquet"
    """Parquet, one row a finished update and source: what was drawn, by which share, and its loss."""
    final_loss: float | None
    """Mean cross-entropy (nats a token) over the last updates."""
    averages: tuple[Ema, ...] = ()
    """What is kept beside the weights; the first is what evaluations take unless they name another."""
    num_skipped: int = 0
    """Finished steps of this phase whose update the skip rule left out; not those of the phases that it starts from."""


def result_of(run: "RunState", averages: tuple[Ema, ...], *, begin_step: int) -> TrainPhaseResult:
    """Of a phase whose trajectory began at `begin_step`, at the step that `run` has reached."""
    from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES

    return TrainPhaseResult(
        begin_step=begin_step,
        step=run.step,
        consumed_tokens=run.consumed_tokens,
        checkpoint=CHECKPOINT,
        metrics=METRICS,
        source_losses=SOURCE_LOSSES,
        final_loss=run.metrics.mean_loss_of_last(FINAL_LOSS_STEPS),
        averages=averages,
        num_skipped=len(skipped_steps(run, begin_step)),
    )


def skipped_steps(run: "RunState", begin_step: int) -> list[int]:
    """Those behind `begin_step` whose update the skip rule left out."""
    return [step for step in run.metrics.skipped_steps if step > begin_step]
