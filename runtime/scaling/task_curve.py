"""Task curve: the accuracy of a task as a sigmoid of bits per byte (Llama 3, arXiv:2407.21783, section 3.2.1;
arXiv:2412.04403)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from runtime.scaling.curves import MIN_SCORED, TaskCurve

GRID = 48
NUM_ZOOMS = 6
"""Grids of middle and width, each around the best point of the one before."""


class ScoredModel(NamedTuple):
    """The loss and a task's accuracy of one model."""

    loss: float
    accuracy: float


class TaskCurveError(ValueError):
    """Scores that determine no curve; the message says what to add."""


def check_models(models: Sequence[ScoredModel]) -> None:
    """Raise TaskCurveError for fewer models than a curve needs, or for models of one loss."""
    span = float(np.ptp([model.loss for model in models]))
    if len(models) < MIN_SCORED or span == 0:
        raise TaskCurveError(
            f"{len(models)} scored models, with losses {span:g} apart, for {MIN_SCORED - 1} coefficients of a curve; "
            f"score at least {MIN_SCORED} models of different losses."
        )


def fit_task_curve(
    models: Sequence[ScoredModel], *, chance: float, weights: Float[np.ndarray, " models"] | None = None
) -> TaskCurve:
    """Return the curve with the least squares, by default with equal weights.

    Middle and width are searched on finer and finer grids. The height has a closed form for each of their points, and
    stays between 0 and what is above chance.

    Raises:
        TaskCurveError: fewer models than a curve needs, or models of one loss.
    """
    check_models(models)
    loss, accuracy = np.array(models, dtype=np.float64).T
    above, weights = accuracy - chance, np.ones(len(models)) if weights is None else weights
    span = float(np.ptp(loss))
    middle_at, middle_reach = float(loss.mean()), 1.5 * span
    width_at, width_reach = math.log(span / 8), math.log(16)
    height = 0.0
    for _ in range(NUM_ZOOMS):
        middles = np.linspace(middle_at - middle_reach, middle_at + middle_reach, GRID)
        log_widths = np.linspace(width_at - width_reach, width_at + width_reach, GRID)
        shape = _falling((loss - middles[:, None, None]) / np.exp(log_widths)[None, :, None])
        power = (shape**2 @ weights) + 1e-12
        heights = np.clip((shape * above) @ weights / power, 0.0, 1.0 - chance)
        errors = ((heights[:, :, None] * shape - above) ** 2) @ weights
        row, column = np.unravel_index(np.argmin(errors), errors.shape)
        middle_at, width_at, height = float(middles[row]), float(log_widths[column]), float(heights[row, column])
        middle_reach, width_reach = middle_reach / 6, width_reach / 6
    return TaskCurve(chance, height, middle_at, math.exp(width_at))


def _falling(x: Float[np.ndarray, "..."] | float) -> Float[np.ndarray, "..."]:
    """Return 1 / (1 + exp(x)), also where exp(x) would overflow."""
    return 0.5 * (1 - np.tanh(0.5 * np.asarray(x)))
