"""Quantities as text, in one style: four figures, a space, the unit; and counts as people type them."""

import re
from decimal import Context, Decimal

COUNT_UNITS = ("", " k", " M", " B", " T")
FIRST_POWER = 9.9995e15
"""Counts from here on, which would be ten thousand trillions, are powers of ten."""
LARGEST_COUNT = 1e17
"""Larger counts are typing mistakes."""
_TYPED = re.compile(r"((?:\d+|\d{1,3}(?:[,_]\d{3})+)(?:\.\d+)?(?:e\+?\d{1,2})?) ?([kmbt]?)", re.IGNORECASE)
_EXACT = Context(prec=40)
"""The thread's own context, which any library may change, would round."""
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}
BYTE_UNITS = (" B", " kB", " MB", " GB", " TB", " PB")


def counted(count: int, noun: str) -> str:
    """Return a count of things: 1 step, 98 steps, 2,048 files."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_short(count: float) -> str:
    """Return a large count: 512, 4.169 M, 14.82 T, 1.41e+21."""
    return f"{count:.2e}" if abs(count) >= FIRST_POWER else _scaled(count, COUNT_UNITS)


def typed_count(count: int) -> str:
    """Return a count as people type it, without rounding: 3B, 1.2341B, 12.749012B."""
    unit, power = next(((name, power) for name, power in reversed(_POWERS.items()) if count >= 10**power), ("", 0))
    return f"{_EXACT.normalize(_EXACT.scaleb(Decimal(count), -power)):f}{unit.upper()}"


def count_typed(text: str) -> int | None:
    """Return the count that a user typed, rounded to a whole one: 3B, 300m, 1.5 T, 2e9, 3_000, 3,000.

    None if the text is no count from 1 to `LARGEST_COUNT`; a comma or an underscore separates groups of three digits.
    """
    found = _TYPED.fullmatch(text.strip())
    if found is None:
        return None
    count = _EXACT.scaleb(Decimal(re.sub("[_,]", "", found[1])), _POWERS[found[2].lower()])
    return round(count) if 1 <= count <= LARGEST_COUNT else None


def in_bytes(size: float) -> str:
    """Return a size in decimal units, as disks and buckets are sold."""
    return _scaled(size, BYTE_UNITS)


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.95:  # which four figures write as 1000
            return f"{value:.4g}{unit}"
        value /= 1000
    return f"{value:,.4g}{units[-1]}" if abs(value) < 999.95 else f"{value:,.0f}{units[-1]}"
