"""Uncertainty of scores: standard errors by groups of items, paired differences, and least detectable differences.

After "Adding Error Bars to Evals" (arXiv:2411.00640): items are a sample of all possible items, and items about one
passage are not independent.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import NamedTuple

SIGNIFICANCE, POWER = 0.05, 0.8


class Difference(NamedTuple):
    """The mean difference of two models on the same items, first minus second."""

    value: float
    stderr: float | None
    num_items: int

    @property
    def is_noise(self) -> bool:
        """Whether the 95 % confidence interval of the difference contains 0, or is unknown."""
        return is_noise(self.value, self.stderr)


def standard_error(values: Sequence[float], groups: Sequence[Hashable] | None = None) -> float | None:
    """Return the standard error of the mean; None for fewer than two groups.

    Args:
        values: one for each item.
        groups: group of each item, such as its passage; by default each item is its own group.
    """
    sums: dict[Hashable, float] = defaultdict(float)
    center = math.fsum(values) / len(values)
    for group, value in zip(range(len(values)) if groups is None else groups, values, strict=True):
        sums[group] += value - center
    if len(sums) < 2:
        return None
    spread = math.fsum(total**2 for total in sums.values()) * len(sums) / (len(sums) - 1)
    return math.sqrt(spread) / len(values)


def paired_difference(
    first: Sequence[float], second: Sequence[float], groups: Sequence[Hashable] | None = None
) -> Difference:
    """Return the mean difference of two models on the same items in the same order, with its standard error."""
    differences = [mine - other for mine, other in zip(first, second, strict=True)]
    value = math.fsum(differences) / len(differences)
    return Difference(value, standard_error(differences, groups), len(differences))


def mean_difference(measured: Sequence[tuple[str, Difference]]) -> Difference:
    """Return the mean of differences on several tasks; each counts the same.

    Different tasks have independent items. Differences of one task, such as at two numbers of shots, are on the same
    items, so their errors are added.
    """
    errors: dict[str, float] = defaultdict(float)
    for task, difference in measured:
        errors[task] += difference.stderr or 0.0
    value = math.fsum(difference.value for _, difference in measured) / len(measured)
    stderr = math.sqrt(math.fsum(error**2 for error in errors.values())) / len(measured)
    return Difference(value, stderr, sum(difference.num_items for _, difference in measured))


def is_noise(difference: float, stderr: float | None, degrees: int | None = None) -> bool:
    """Return whether the 95 % confidence interval of a difference contains 0, or is unknown.

    `degrees` are the degrees of freedom of a standard error that was estimated from few values; None for many.
    """
    if not stderr:
        return stderr is None or difference == 0
    ratio = abs(difference) / stderr
    within = 2 * NormalDist().cdf(ratio) - 1 if degrees is None else student_share(ratio, degrees)
    return within <= 1 - SIGNIFICANCE


def student_share(ratio: float, degrees: int) -> float:
    """Return the share of Student's t distribution within ±`ratio` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(ratio / math.sqrt(degrees))
    is_odd = degrees % 2
    term, total = math.cos(angle) if is_odd else 1.0, 0.0
    for index in range(degrees // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * index + 1 + is_odd) / (2 * index + 2 + is_odd)
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if is_odd else within


def minimum_detectable_difference(stderr: float) -> float:
    """Return the difference that a two-sided test at 5 % significance finds in 80 % of samples.

    `stderr` is the standard error of the difference; for two models on the same items, of their paired difference.
    """
    normal = NormalDist()
    return (normal.inv_cdf(1 - SIGNIFICANCE / 2) + normal.inv_cdf(POWER)) * stderr
