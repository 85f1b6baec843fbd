"""Shares: integers that sum to a fixed whole, so that nothing drifts and every host has the same ones. No NumPy."""

import math
from collections.abc import Mapping
from fractions import Fraction

WHOLE = 1 << 60
"""A sequence in units of a share: over 10**15 sequences the rounding of a share stays below one."""


def apportioned(weights: Mapping[str, float | Fraction], total: int = WHOLE) -> dict[str, int]:
    """Split `total` in proportion to `weights`, to the last unit: largest remainder first, equal ones by name.

    Weights are not negative and not all zero; each counts as the exact number that it is.
    """
    ratios = {name: weight.as_integer_ratio() for name, weight in sorted(weights.items())}
    common = math.lcm(*(below for _, below in ratios.values()))
    exact = {name: above * (common // below) for name, (above, below) in ratios.items()}
    divisor = sum(exact.values())
    shares = {name: value * total // divisor for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (-(exact[name] * total % divisor), name))
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares
