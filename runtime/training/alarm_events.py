"""Alarm events: alarms and single spikes in the logs, with the part of the model and the row that stand out.

Every sentence is the text of a logging call, which the code identity of a phase leaves out: no function returns one.
"""

import logging
import math
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float32, Int32

from runtime.tracking.events import EventLog
from runtime.training.figure_checks import CREEP_STEPS, PERSISTENT_LEAST, PERSISTENT_STEPS, UPDATE_NORM_STEPS
from runtime.training.monitors import Monitors
from runtime.training.norm_places import FEWEST_STEPS, Place, standing_out
from runtime.training.observer import Alarm

BATCH_MONITORS = ("grad_norm", "loss_spike", "low_loss")
"""Monitors of single batches, one row of which may be the cause."""

logger = logging.getLogger(__name__)


def log_alarm(alarm: Alarm, events: EventLog, place: Place) -> None:
    """Write the alarm to the log and the event log of the first host; all hosts find the same alarms."""
    if jax.process_index() > 0:
        return
    if alarm.monitor in ("copies", "pace"):
        _warn_of_machine(alarm)
    else:
        _warn_of_figure(alarm)
        _warn_of_parts(place)
        _advise(alarm)
    if "row" in place:
        logger.warning(
            "row %d of the batch (%s) has %.4g nats a token, the median of the other rows is %.4g: `batch PHASE@%d` "
            "shows their text",
            place["row"], place["source"], float(place["row_loss"]), float(place["median_row_loss"]), alarm.step,
        )  # fmt: skip
    _write("alarm", alarm, events, place)


def _warn_of_machine(alarm: Alarm) -> None:
    step, figure, facts = alarm.step, alarm.figure, alarm.facts
    if alarm.monitor == "copies":
        logger.warning(
            f"step {step}: copies of the same parameters differ between devices, in {', '.join(facts['tensors'])}. A "
            f"device has computed or remembered wrongly after step {facts['same_step']}, where the copies were equal. "
            "Training continues, and the right copy is unknown: stop the phase, have the machines checked, and start "
            f"again from a checkpoint of step {facts['same_step']} or earlier (`checkpoints PHASE --good` lists them)."
        )
    else:
        logger.warning(
            f"step {step}: a training step takes {figure:.4g} s, {figure / facts['best'] - 1:.0%} more than the best "
            f"{facts['best']:.4g} s, for {facts['num_steps']} steps now: a host, a chip or the network is slow. "
            "Training continues; request a profile of a few steps with `tell PHASE profile`."
        )


def _warn_of_figure(alarm: Alarm) -> None:
    step, figure, limit, facts = alarm.step, alarm.figure, alarm.limit, alarm.facts
    match alarm.monitor:
        case "first_loss":
            logger.warning(
                f"step {step}: the first loss is {figure:.4g}; an untrained model has {facts['expected']:.4g}; the "
                f"limit is {limit:.4g}"
            )
        case "grad_norm":
            logger.warning(
                f"step {step}: the gradient norm is {figure:.4g}, {facts['factor']:.3g} times its median over the last "
                f"{facts['level_steps']} steps; the limit is {limit:.4g}"
            )
        case "loss_spike" | "low_loss":
            logger.warning(
                f"step {step}: the loss is {figure:.4g}; its median over the last {facts['level_steps']} steps is "
                f"{facts['median']:.4g}; the limit is {limit:.4g}"
            )
        case "persistent_loss":
            logger.warning(
                f"step {step}: the loss stays high: {facts['num_above']} of the last {PERSISTENT_STEPS} steps were "
                f"above the limit of {limit:.4g}, {PERSISTENT_LEAST} reached {figure:.4g}, and the median before them "
                f"is {facts['median']:.4g}"
            )
        case "update_norm":
            logger.warning(
                f"step {step}: the norm of the update relative to the learning rate was at least {figure:.4g} in the "
                f"last {UPDATE_NORM_STEPS} steps, and its median before them is {facts['median']:.4g}; the limit is "
                f"{limit:.4g}"
            )
        case "no_recovery":
            logger.warning(
                f"step {step}: the loss has not recovered from the spike at step {facts['spike']}: its recent median "
                f"is {figure:.5g}, {facts['expected']:.5g} was expected, and the limit is {limit:.5g}"
            )
        case "creep":
            logger.warning(
                f"step {step}: the loss rises without the learning rate: by {figure:.3g} over the last {CREEP_STEPS} "
                f"steps, {facts['standard_errors']:.1f} standard errors; the limit is {limit:.3g}"
            )
        case _:
            raise AssertionError(alarm.monitor)


def _advise(alarm: Alarm) -> None:
    match alarm.monitor:
        case "first_loss":
            logger.warning(
                "training continues: stop it and check the initial weights (model.initialization), the token ids of "
                "the first batch, and that no position sees the token it has to predict; later figures show such a "
                "fault less clearly"
            )
        case "low_loss":
            logger.warning(
                "training continues: check the batches for repeated text, a broken source or leaked targets; "
                "`checkpoints PHASE --good` lists the checkpoints from before it"
            )
        case _:
            if alarm.monitor == "creep":
                logger.warning("if the log-normaliser grows with the loss, set z_loss")
            logger.warning(
                "training continues: if the loss does not recover, roll back: `rollback PHASE` prints the command that "
                "skips these batches, and `checkpoints PHASE --good` lists the checkpoints to start from"
            )


def _warn_of_parts(place: Place) -> None:
    match place:
        case {"not_finite": _, "norms_of": measured}:
            logger.warning("the norm of the %s is not finite in %s", measured, standing_out(place))
        case {"parts": [first, *others], "norms_of": measured, "median_updates": num_steps}:
            logger.warning(
                "largest change in %s: the norm of its %s is %.3g times its median over the last %d steps",
                first["part"], measured, first["factor"], num_steps,
            )  # fmt: skip
            for other in others[:1]:
                logger.warning("next in %s: %.3g times", other["part"], other["factor"])
        case {"parts": [], "median_updates": num_steps} if num_steps < FEWEST_STEPS:
            logger.warning(
                "the parts of the model are not compared: this attempt has %d of %d steps", num_steps, FEWEST_STEPS
            )


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
    events.write(name, step=alarm.step, **found, **place)


def odd_row(
    row_loss: Float32[np.ndarray, "rows"],
    row_targets: Int32[np.ndarray, "rows"],
    sources: Sequence[str],
    *,
    lowest: bool = False,
) -> Place:
    """Return the row of a batch with the highest (or lowest) loss a token, and the median of the other rows."""
    counted = np.flatnonzero(row_targets)
    if len(counted) < 2:
        return {}
    losses = row_loss[counted] / row_targets[counted]
    order = np.argsort(np.where(np.isfinite(losses), -losses if not lowest else losses, -np.inf), kind="stable")
    row, loss, median = int(counted[order[0]]), float(losses[order[0]]), float(np.median(losses[order[1:]]))
    figures = {
        name: value if math.isfinite(value) else str(value)
        for name, value in (("row_loss", loss), ("median_row_loss", median))
    }
    return {"row": row, "source": sources[row], **figures}
