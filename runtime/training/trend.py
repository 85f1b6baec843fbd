"""Trend: straight lines through losses, and how far from a line is too far."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from runtime.optim.skipping import LEAST_DEVIATION
from runtime.training.level import NORMAL_DEVIATION

MEDIAN_ERROR = 1.2533
"""Standard error of a median of normal values, relative to that of their mean."""

Losses = Float64[np.ndarray, "steps"]


class Slope(NamedTuple):
    """Change a training step."""

    value: float
    standard_error: float


class Recovery(NamedTuple):
    """A loss after a spike, what was expected before it, and the highest loss that counts as recovered."""

    figure: float
    expected: float
    highest: float


def slope(losses: Losses) -> Slope:
    """Return the slope of the least-squares line through all losses."""
    line = _line(losses, len(losses))
    steps = _centred(len(losses), len(losses))
    squares = float(np.square(steps).sum())
    error = math.sqrt(float(np.square(losses - line).sum()) / (len(losses) - 2) / squares)
    # The slope of a constant loss is rounding alone.
    least = LEAST_DEVIATION * abs(float(losses.mean())) / math.sqrt(squares)
    return Slope(float(losses @ steps) / squares, max(error, least))


def recovery(losses: Losses, *, num_before: int, num_after: int, sigma: float) -> Recovery:
    """Compare the median of the last `num_after` losses with the line through the first `num_before`.

    The spike lies between. The standard error is that of a median and of a line that ends before it. A convex curve
    lies above its lines, so a loss no higher than right before the spike has recovered, whatever the line predicts.
    """
    before, after = losses[:num_before], losses[-num_after:]
    line = _line(before, len(losses))
    distance = NORMAL_DEVIATION * float(np.median(np.abs(before - line[:num_before])))
    deviation = max(distance, LEAST_DEVIATION * abs(float(before.mean())))
    error = MEDIAN_ERROR * deviation * math.sqrt(1 / num_after + 4 / num_before)
    expected = float(np.median(line[-num_after:]))
    return Recovery(
        float(np.median(after)), expected, max(expected + sigma * error, float(np.median(before[-num_after:])))
    )


def _centred(num_fitted: int, length: int) -> Losses:
    """Return step numbers counted from the middle of the first `num_fitted`."""
    return np.arange(length) - (num_fitted - 1) / 2


def _line(fitted: Losses, length: int) -> Losses:
    """Return the line through `fitted`, extended to `length` steps."""
    steps = _centred(len(fitted), length)
    by_step = fitted @ steps[: len(fitted)] / np.square(steps[: len(fitted)]).sum()
    return fitted.mean() + by_step * steps
