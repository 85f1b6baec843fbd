"""Exponential moving average of the weights: the setting, as a plain value (the arithmetic is in `averaging`)."""

import dataclasses
import math
import re
from collections.abc import Iterable

HOT = "hot"
"""What the weights as last trained are called, beside the names of averages."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LARGEST_SHARE = 0.999
"""What an update that an average takes leaves of it, about, at most. Float32 rounds away what moves a weight by less
than half a unit in its last place, 6e-8 of it: with 0.9999 at each update the average follows about 95 % of a jump by
1 % of a weight and stops there, and with 0.999999 it never moves."""
LONGEST_HALF_LIFE_IN_STEPS = 10_000_000


@dataclasses.dataclass(frozen=True)
class Ema:
    """`average <- decay * average + (1 - decay) * weights` after every update, starting as a copy of the weights.

    A slow one (a decay above 0.9993) takes the weights of every so many updates instead, and keeps `decay` to that
    power: the same average of fewer weights, and one that float32 can follow. It goes by steps, as schedules do: where
    the skip rule leaves an update out, an average whose turn it is takes the weights, which stayed as they were.
    """

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
        if self.half_life_in_steps > LONGEST_HALF_LIFE_IN_STEPS:
            raise ValueError(
                f"Ema.decay is {self.decay}: half of an old weight would stay for {self.half_life_in_steps:,.0f} "
                "updates, longer than any run; 0.99999 keeps half of it for 69,000."
            )
        if self.name == HOT or not NAME.fullmatch(self.name):
            raise ValueError(
                f'Ema.name is {self.name!r}; use small letters, digits, "_" and "-", and not {HOT!r}, which is what '
                "the weights as last trained are called."
            )

    @property
    def half_life_in_steps(self) -> float:
        """Updates after which an old weight counts half (138 at decay 0.995)."""
        return math.log(0.5) / math.log(self.decay)

    @property
    def every_steps(self) -> int:
        """Updates from one that the average takes to the next (1 up to a decay of 0.9993, 10 at 0.9999)."""
        return max(1, round(math.log(LARGEST_SHARE) / math.log(self.decay)))

    def kept_by(self, step: int) -> float:
        """Share of the average that the update after `step` finished ones keeps; 1 where it does not take part."""
        return 1.0 if (step + 1) % self.every_steps else self.decay**self.every_steps


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
            "keeps, or give the phase such an average."
        )
    return kept[name]
