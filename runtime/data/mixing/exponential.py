"""Exponential and logarithm with the same bits on every machine.

The last bit of `math.exp` differs between C libraries and processors. Hosts that disagree about a share would read
different batches, so both functions use only operations that IEEE 754 rounds in one way.
"""

import decimal
import functools
import math

LARGEST = 709.0
SMALLEST = -745.0
# ln 2 in two parts. The first has trailing zeros, so its product with an exponent is exact (fdlibm's constants).
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")


def exp(value: float) -> float:
    """Return e ** value within 1e-15 of it; infinity above `LARGEST`, 0 below `SMALLEST`."""
    if value > LARGEST:
        return math.inf
    if value < SMALLEST:
        return 0.0
    power = round(value / (LN2_HIGH + LN2_LOW))
    rest = value - power * LN2_HIGH - power * LN2_LOW
    total = 1.0
    for divisor in range(14, 0, -1):  # |rest| <= ln 2 / 2, so the next term of the series is below 1e-18
        total = 1.0 + rest * total / divisor
    return math.ldexp(total, power)


@functools.cache
def log(value: float) -> float:
    """Return the natural logarithm."""
    return float(decimal.Context(prec=50).ln(decimal.Decimal(value)))
