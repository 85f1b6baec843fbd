"""Scales: from values to pixels, ticks at round values, and numbers as a reader writes them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

# Mean width of a character of a sans-serif interface font, in units of its size; a little generous, so that a
# label that fits here fits in the reader's font.
_CHARACTER_WIDTH = 0.56
_TOKEN_UNITS = ((1e12, "T", "trillions"), (1e9, "B", "billions"), (1e6, "M", "millions"), (1e3, "k", "thousands"))


def text_width(text: str, size: float) -> float:
    """Return pixels that `text` takes at a font size, estimated."""
    return len(text) * _CHARACTER_WIDTH * size


def fitted(name: str, room: float, size: float) -> str:
    """`name`, or where that takes more than `room` pixels both its ends around an ellipsis: names of forks that begin
    alike differ at the end. The page says the whole name elsewhere, in a table or when a mark is pointed at."""
    most = max(int(room / (_CHARACTER_WIDTH * size)), 3)
    if len(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[len(name) - (most - most // 2 - 1) :]}"


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps `low`..`high` of the data onto `start`..`end` in pixels; `end` may be the smaller one (y grows down)."""

    low: float
    high: float
    start: float
    end: float
    kind: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        for name in ("low", "high", "start", "end"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"Scale.{name} is {getattr(self, name)}; a scale has finite ends.")
        if self.low >= self.high:
            raise ValueError(f"Scale from {self.low} to {self.high}: the low end must lie below the high one.")
        if self.kind == "log" and self.low <= 0:
            raise ValueError(f"Scale.low is {self.low} on a log scale; leave values that are not positive out.")

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside the ends land outside."""
        if self.kind == "log":
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def contains(self, value: float) -> bool:
        """Return whether a value lies between the ends."""
        return self.low <= value <= self.high

    def ticks(self, at_most: int) -> list[float]:
        """Round values inside the ends: 1, 2, 2.5 or 5 times a power of ten; on a log scale powers of ten first."""
        if self.kind == "linear":
            return _linear_ticks(self.low, self.high, at_most)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            ticks = [m * 10.0**power for power in range(first, last + 1) for m in mantissas]
            inside = [tick for tick in ticks if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
            if len(inside) <= at_most:
                return inside
        return inside[:: math.ceil(len(inside) / at_most)]


def _linear_ticks(low: float, high: float, at_most: int) -> list[float]:
    power = math.floor(math.log10((high - low) / at_most)) - 1
    for step in sorted(m * 10.0**p for p in range(power, power + 4) for m in (1, 2, 2.5, 5)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= at_most:
            return [index * step for index in range(first, last + 1)]
    raise AssertionError("some power of ten gives at most one tick")


def padded(values: Sequence[float], share: float = 0.06, least: float = 1e-9) -> tuple[float, float]:
    """Return ends of a linear scale around values, with room of a share of their span on either side."""
    low, high = min(values), max(values)
    room = max((high - low) * share, least, abs(high) * 1e-6)
    return low - room, high + room


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return ticks with as many decimals as tell them apart, the same number for all."""
    for decimals in range(8):
        if all(math.isclose(round(tick, decimals), tick, rel_tol=1e-9, abs_tol=1e-12) for tick in ticks):
            # Rounded first, so that a tiny negative number is written as 0 and not as -0; the sign of others stays.
            return [f"{round(tick, decimals) + 0.0:.{decimals}f}" for tick in ticks]
    return [f"{tick:.2e}" for tick in ticks]


def rate_label(value: float) -> str:
    """Return a learning rate as people write it: 1.7e-3."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if value else "0"


def token_unit(most: float) -> tuple[float, str]:
    """Divisor and its letter, for an axis up to `most` tokens."""
    return next(((size, name) for size, name, _ in _TOKEN_UNITS if most >= size), (1.0, ""))


def tokens_label(value: float) -> str:
    """Return a number of tokens or documents with three figures: 12.7T, 840k, 12."""
    for size, letter, _ in _TOKEN_UNITS:
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
