"""What a training phase leaves behind; a `hf_import` leaves the same, so that a phase can start from either."""

from pydantic import BaseModel

from runtime.optim.ema import Ema


class TrainPhaseResult(BaseModel, frozen=True, extra="forbid"):
    """What a phase leaves behind; paths are relative to its output."""

    begin_step: int = 0
    """Finished updates when its trajectory began, of which it is a part where the phase was cut."""
    step: int
    """Finished updates since the start of the run."""
    consumed_tokens: int
    """Tokens drawn since the start of the run, exact under every batch schedule."""
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
