"""Trend: straight lines through losses, and how far from them is far."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from runtime.optim.skipping import LEAST_DEVIATION
from runtime.training.level import NORMAL_DEVIATION

MEDIAN_ERROR = 1.2533
"""Standard errors of a mean in that of a median, of normal values."""

Losses = Float64[np.ndarray, "updates"]


class Slope(NamedTuple):
    """By update."""

    value: float
    standard_error: float


class Recovery(NamedTuple):
    """A loss after a spike, and what was to be expected before it; `highest` is the most that counts as come back."""

    figure: float
    expected: float
    highest: float


def slope(losses: Losses) -> Slope:
    """Of the line through all of them, by least squares."""
    line = _line(losses, len(losses))
    steps = _centred(len(losses), len(losses))
    squares = float(np.square(steps).sum())
    error = math.sqrt(float(np.square(losses - line).sum()) / (len(losses) - 2) / squares)
    # Of a loss that never varied, rounding has a slope.
    least = LEAST_DEVIATION * abs(float(losses.mean())) / math.sqrt(squares)
    return Slope(float(losses @ steps) / squares, max(error, least))


def recovery(losses: Losses, *, num_before: int, num_after: int, sigma: float) -> Recovery:
    """Of the median of the last `num_after`, against the line through the first `num_before`; the spike lies between.

    The standard error is of a median and of a line that ends before it. A curve that bends lies above its lines: what
    is no higher than right before the spike has come back, whatever the line says.
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
    """Updates counted from the middle of the first `num_fitted`."""
    return np.arange(length) - (num_fitted - 1) / 2


def _line(fitted: Losses, length: int) -> Losses:
    """The line through `fitted`, drawn on to `length` updates."""
    steps = _centred(len(fitted), length)
    by_update = fitted @ steps[: len(fitted)] / np.square(steps[: len(fitted)]).sum()
    return fitted.mean() + by_update * steps
