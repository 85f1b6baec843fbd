"""Exponential moving average of the weights: the setting, as a plain value (the arithmetic is in `averaging`)."""

import dataclasses
import math
import re
import struct
from collections.abc import Iterable

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclasses.dataclass(frozen=True)
class Ema:
    """`average <- decay * average + (1 - decay) * weights` after every update, starting as a copy of the weights."""

    decay: float
    name: str = "averaged"
    """What exports and evaluations call these weights. An average goes on in the phases that keep one of its name."""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(
                f"Ema.decay is {self.decay}; it is the share of the average that is kept, so it lies between 0 and 1."
            )
        if self.decay < 0.5:
            raise ValueError(
                f"Ema.decay is {self.decay}: the average would follow each update almost at once; 0.995 keeps 99.5 % "
                "of it. Two public runs had the direction backwards: pass the share that is kept."
            )
        if struct.unpack("f", struct.pack("f", self.decay))[0] == 1:
            raise ValueError(
                f"Ema.decay is {self.decay}, which is 1 in float32: the average would never move; 0.9999999 is "
                "not, and keeps half of an old weight for seven million updates."
            )
        if self.name == "hot" or not NAME.fullmatch(self.name):
            raise ValueError(
                f'Ema.name is {self.name!r}; use small letters, digits, "_" and "-", and not "hot", which is what the '
                "weights as last trained are called."
            )

    @property
    def half_life_in_steps(self) -> float:
        """Updates after which an old weight counts half (138 at decay 0.995)."""
        return math.log(0.5) / math.log(self.decay)


def average_named(averages: Iterable[Ema], name: str | None, *, owner: str) -> Ema:
    """The average called `name`, or the first for None.

    Raises:
        ValueError: there is none; the message lists those that `owner` keeps.
    """
    kept = {average.name: average for average in averages}
    if name is None and kept:
        return next(iter(kept.values()))
    if name not in kept:
        have = f"averages called {', '.join(kept)}" if kept else "no average"
        raise ValueError(
            f"{owner} keeps {have}, and {'an average' if name is None else repr(name)} is asked for; take one that it "
            'keeps, or "hot" weights, or give the phase such an average.'
        )
    return kept[name]
