"""Alarms: what monitors find, as values. `alarm_events` words them."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

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
