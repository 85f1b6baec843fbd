"""Alarm events: alarms and single spikes in the logs, with the parts of the model and the row that stand out."""

import logging
import math
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float32, Int32

from runtime.tracking.events import EventLog
from runtime.training.monitors import Alarm, Monitors
from runtime.training.norm_places import NOWHERE, Place

BATCH_MONITORS = ("grad_norm", "loss_spike", "low_loss")
"""Monitors of single batches, one row of which may be the cause."""

logger = logging.getLogger(__name__)


def log_alarm(alarm: Alarm, events: EventLog, place: Place) -> None:
    """Write the alarm to the log and the event log of the first host; all hosts find the same alarms."""
    if jax.process_index() > 0:
        return
    logger.warning("%s", f"{alarm.message} {place.text}".rstrip())
    _write("alarm", alarm, events, place)


def log_spikes(monitors: Monitors, events: EventLog, place: Place) -> None:
    """Write the newest step's spikes that raised no alarm, and the spike from which the loss has recovered."""
    if jax.process_index() > 0:
        return
    for spike in monitors.single_spikes:
        _write("spike", spike, events, place)
    if monitors.recovered_step is not None:
        events.write("recovered", step=monitors.recovered_step)


def _write(name: str, alarm: Alarm, events: EventLog, place: Place) -> None:
    found = {"monitor": alarm.monitor, "figure": alarm.figure, "limit": alarm.limit}
    events.write(name, step=alarm.step, **found, **place.facts)


def odd_row(
    step: int,
    row_loss: Float32[np.ndarray, "rows"],
    row_targets: Int32[np.ndarray, "rows"],
    sources: Sequence[str],
    *,
    lowest: bool = False,
) -> Place:
    """Return the row of a batch with the highest (or lowest) loss a token, and the median of the other rows."""
    counted = np.flatnonzero(row_targets)
    if len(counted) < 2:
        return NOWHERE
    losses = row_loss[counted] / row_targets[counted]
    order = np.argsort(np.where(np.isfinite(losses), -losses if not lowest else losses, -np.inf), kind="stable")
    row, loss = int(counted[order[0]]), float(losses[order[0]])
    median = float(np.median(losses[order[1:]]))
    text = (
        f"Row {row} of the batch ({sources[row]}) has {loss:.4g} nats a token, the median of the other rows is "
        f"{median:.4g}: `batch PHASE@{step}` shows their text."
    )
    figures = {
        name: value if math.isfinite(value) else str(value)
        for name, value in (("row_loss", loss), ("median_row_loss", median))
    }
    return Place(text, {"row": row, "source": sources[row], **figures})
