"""Quantities as text, in one style: four figures, a space, the unit."""

COUNT_UNITS = ("", " k", " M", " B", " T")
FIRST_POWER = 9.9995e15
"""Counts from here on, which would be ten thousand trillions, are powers of ten."""
BYTE_UNITS = (" B", " kB", " MB", " GB", " TB", " PB")


def counted(count: int, noun: str) -> str:
    """Return a count of things: 1 step, 98 steps, 2,048 files."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_short(count: float) -> str:
    """Return a large count: 512, 4.169 M, 14.82 T, 1.41e+21."""
    return f"{count:.2e}" if abs(count) >= FIRST_POWER else _scaled(count, COUNT_UNITS)


def in_bytes(size: float) -> str:
    """Return a size in decimal units, as disks and buckets are sold."""
    return _scaled(size, BYTE_UNITS)


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.95:  # which four figures write as 1000
            return f"{value:.4g}{unit}"
        value /= 1000
    return f"{value:,.4g}{units[-1]}" if abs(value) < 999.95 else f"{value:,.0f}{units[-1]}"
