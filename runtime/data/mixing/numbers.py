"""Numbers that the policies share: an exponential with one value everywhere, and the exploration of Exp3."""

import decimal
import functools
import math
from collections.abc import Iterable, Mapping

from runtime.data.shares import WHOLE, apportioned

# Correctly rounded, unlike the exponential of a C library, whose last bit differs between machines.
_DIGITS = decimal.Context(prec=50)
_BITS = 128
_ONE = 1 << _BITS
_DOUBT = 1 << 40
"""In units of 2**-128, a thousand times what the sums of `exp` can be off."""


def exp(value: float) -> float:
    """e ** value, the same bits on every machine; infinity where it is too large for a double.

    In whole numbers of 2**-128: e ** value = 2**k e**(a/2**8) e**(b/2**16) e**rest. What lies so near to the middle
    of two doubles that this cannot tell goes through fifty decimal digits, which are slower.
    """
    if value > 709.0:
        return math.inf
    if value < -700.0:
        return float(_DIGITS.exp(decimal.Decimal(value)))
    ln2, coarse, fine = _tables()
    above, below = value.as_integer_ratio()
    power, rest = divmod((above << _BITS) >> (below.bit_length() - 1), ln2)
    first = rest >> (_BITS - 8)
    second = (rest >> (_BITS - 16)) & 255
    rest &= (1 << (_BITS - 16)) - 1
    total = _ONE  # 1 + r (1 + r/2 (1 + r/3 (…))), r below 2**-16: the seventh term is below 2**-124
    for divisor in (6, 5, 4, 3, 2, 1):
        total = _ONE + (rest * total >> _BITS) // divisor
    total = (total * coarse[first] >> _BITS) * fine[second] >> _BITS
    cut = total.bit_length() - 53
    if abs((total & ((1 << cut) - 1)) - (1 << (cut - 1))) < _DOUBT:
        return float(_DIGITS.exp(decimal.Decimal(value)))
    return math.ldexp(total, power - _BITS)


@functools.cache
def _tables() -> tuple[int, list[int], list[int]]:
    """ln 2, and the powers of e**(1/2**8) below 2 and of e**(1/2**16), in units of 2**-128."""

    def whole(number: decimal.Decimal) -> int:
        return int(_DIGITS.multiply(number, decimal.Decimal(_ONE)))

    def power(above: int, below: int) -> int:
        return whole(_DIGITS.exp(_DIGITS.divide(decimal.Decimal(above), decimal.Decimal(below))))

    ln2 = whole(_DIGITS.ln(decimal.Decimal(2)))
    return ln2, [power(index, 1 << 8) for index in range(178)], [power(index, 1 << 16) for index in range(256)]


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
