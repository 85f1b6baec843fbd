"""Numbers that the policies share: an exponential with one value everywhere, and the exploration of Exp3."""

import decimal
import functools
import math
from collections.abc import Iterable, Mapping

from runtime.data.shares import WHOLE, apportioned

# Correctly rounded, unlike the exponential of a C library, whose last bit differs between machines.
_DIGITS = decimal.Context(prec=25)


def exp(value: float) -> float:
    """e ** value, the same bits on every machine; infinity where it is too large for a double."""
    return math.inf if value > 709.0 else float(_DIGITS.exp(decimal.Decimal(value)))


@functools.cache
def log(number: int) -> float:
    """Natural logarithm of a whole number, the same bits on every machine."""
    return float(_DIGITS.ln(decimal.Decimal(number)))


def softmax(values: Mapping[str, float]) -> dict[str, float]:
    """exp(values), not normalised; the largest is 1, so nothing overflows."""
    top = max(values.values())
    return {name: exp(value - top) for name, value in values.items()}


def exploration(num_sources: int, turn: int) -> float:
    """E_t of Exp3 and of Online Data Mixing (arXiv:2312.02406): 1/K at first, then sqrt(ln K / (K t))."""
    if turn < 1:
        return 1 / num_sources
    return min(1 / num_sources, math.sqrt(log(num_sources) / (num_sources * turn)))


def explored(weights: Mapping[str, float], floor: float) -> dict[str, int]:
    """(1 - K floor) * weights / sum(weights) + floor, as shares of `WHOLE`, none of them below the floor."""
    count = len(weights)
    if floor >= 1 / count:
        return apportioned(dict.fromkeys(weights, 1.0))
    least = min(int(floor * WHOLE), WHOLE // count)
    above = apportioned(weights, WHOLE - count * least)
    return {name: least + share for name, share in above.items()}


def by_rewards(rewards: Mapping[str, float], sources: Iterable[str], turn: int) -> dict[str, int]:
    """Shares of turn `turn`, from 1, of Exp3 and of Online Data Mixing: a softmax of rewards, mixed with exploration.

    The exponent takes E of the turn before, the floor that of this one; what has no reward yet has 0.
    """
    names = list(sources)
    before, now = exploration(len(names), turn - 1), exploration(len(names), turn)
    return explored(softmax({name: before * rewards.get(name, 0.0) for name in names}), now)
