"""IsoFLOP curves: the best size at each of several budgets, from a parabola (approach 2 of arXiv:2203.15556).

The curves assume no law, so they are a check of the fitted one. The loss of a size between two of its lengths is taken
from a straight line in logarithms.
"""

from collections.abc import Sequence

import numpy as np

from runtime.scaling.curves import IsoFlopCurve
from runtime.scaling.law import FLOPS_PER_PARAMETER_AND_TOKEN, Rung

MIN_SIZES = 3
"""Sizes that a parabola needs."""
NUM_BUDGETS = 5


def isoflop_curves(rungs: Sequence[Rung]) -> list[IsoFlopCurve]:
    """Return curves at budgets that at least `MIN_SIZES` sizes reach, spread evenly in logarithms."""
    by_size: dict[float, list[tuple[float, float]]] = {}
    for rung in sorted(rungs):
        flops = FLOPS_PER_PARAMETER_AND_TOKEN * rung.num_parameters * rung.num_tokens
        by_size.setdefault(rung.num_parameters, []).append((flops, rung.loss))
    ranges = [(of_size[0][0], of_size[-1][0]) for of_size in by_size.values()]
    ends = [end for each in ranges for end in each]
    reached = [flops for flops in ends if sum(low <= flops <= high for low, high in ranges) >= MIN_SIZES]
    if not reached or min(reached) == max(reached):
        return []
    # Rounded inwards, so that the size that ends there is on the curve.
    budgets = np.geomspace(min(reached) * (1 + 1e-9), max(reached) * (1 - 1e-9), NUM_BUDGETS)
    curves = [_curve(float(flops), by_size) for flops in budgets]
    return [curve for curve in curves if len(curve.num_parameters) >= MIN_SIZES]


def _curve(flops: float, by_size: dict[float, list[tuple[float, float]]]) -> IsoFlopCurve:
    sizes, losses = [], []
    for num_parameters, of_size in by_size.items():
        if of_size[0][0] <= flops <= of_size[-1][0]:
            budgets, measured = np.log(np.array(of_size)).T
            sizes.append(num_parameters)
            losses.append(float(np.exp(np.interp(np.log(flops), budgets, measured))))
    return IsoFlopCurve(flops, tuple(sizes), tuple(losses), _minimum(sizes, losses))


def _minimum(sizes: Sequence[float], losses: Sequence[float]) -> float | None:
    if len(sizes) < MIN_SIZES:
        return None
    log_sizes = np.log(sizes)
    curvature, slope, _ = np.polyfit(log_sizes, losses, 2)
    if curvature <= 0:
        return None
    lowest = -slope / (2 * curvature)
    return float(np.exp(lowest)) if log_sizes.min() <= lowest <= log_sizes.max() else None


def size_exponent(curves: Sequence[IsoFlopCurve]) -> float | None:
    """Return the exponent a of the best size over the budget, N ~ C^a; None with fewer than two minima."""
    found = [(curve.flops, curve.optimum) for curve in curves if curve.optimum is not None]
    if len(found) < 2:
        return None
    flops, sizes = np.log(np.array(found)).T
    return float(np.polyfit(flops, sizes, 1)[0])
