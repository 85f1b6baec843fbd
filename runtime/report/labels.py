"""Numbers as a reader writes them."""

import math

_TOKEN_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def tokens_label(value: float) -> str:
    """Return a number of tokens or documents with three figures: 12.7T, 840k, 12."""
    for size, letter in _TOKEN_UNITS:
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{max(0, 2 - max(0, math.floor(math.log10(scaled))))}f}{letter}"
    return f"{value:.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts: 1 document, 1,200 documents."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bytes_label(value: float) -> str:
    """Return a number of bytes with three figures, in decimal units."""
    figures = tokens_label(value)
    if value < 999.5:
        return f"{figures} B"
    return f"{figures[:-1]} {figures[-1].replace('B', 'G')}B"
