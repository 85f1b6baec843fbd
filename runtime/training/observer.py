"""Observer: what the training loop reports to its caller; alarms are values, which `alarm_events` words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from runtime.training.run_state import RunState

Monitor = Literal[
    "first_loss", "grad_norm", "loss_spike", "low_loss", "persistent_loss", "update_norm", "no_recovery", "creep",
    "copies", "pace",
]  # fmt: skip


class Alarm(NamedTuple):
    """A monitor's first finding of an incident, or a spike of a single step."""

    monitor: Monitor
    step: int
    figure: float
    limit: float
    facts: Mapping[str, Any]
    """Further figures of the finding, by names of its monitor."""


class Observer:
    """Receives the reports of a training loop, in the loop's own thread; a subclass overrides what it needs."""

    def on_progress(self, step: int, tokens_per_second: float, loss: float | None) -> None:
        """Receive the newest finished step at most twice a second; `loss` is None before one is known."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Receive an alarm of a monitor, on every host; the log and the event log have it already."""

    def on_validation(self, step: int, mean_bits_per_byte: Mapping[str, float]) -> None:
        """Receive the mean over sources for each set of weights, by its name."""

    def on_milestone(self, run: "RunState", folder: str) -> None:
        """Receive a complete permanent checkpoint: `folder` is relative to the output.

        The arrays of `run` may be donated already.
        """

    def on_warning(self, text: str) -> None:
        """Receive a warning for the user."""
