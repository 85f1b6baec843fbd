"""Exponential moving average (EMA) of the weights: the setting, as a plain value (arithmetic: `training.state`)."""

import dataclasses
import math
import re
from collections.abc import Iterable

HOT = "hot"
"""Name of the weights themselves, beside the names of averages; the word of the recipe's authors."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LARGEST_SHARE = 0.999
"""Largest share, about, of an average that one step keeps. Float32 rounds away smaller changes: with 0.9999 a step
the average follows about 95 % of a jump by 1 % of a weight, and with 0.999999 it never moves."""
LONGEST_HALF_LIFE_IN_STEPS = 10_000_000


@dataclasses.dataclass(frozen=True)
class Ema:
    """`average <- decay * average + (1 - decay) * weights` after every step, starting as a copy of the weights.

    A slow average (a decay above 0.9993) takes the weights of every n-th step instead, with `decay` to the power n: the
    same average of fewer weights, which float32 can follow. Its turns depend on the step alone.
    """

    decay: float
    name: str = "averaged"
    """Name of these weights in exports and evaluations. Later phases that keep an average of this name continue it."""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(
                f"Ema.decay is {self.decay}; use the share of the average that is kept, between 0 and 1: Ema(0.995)."
            )
        if self.decay < 0.5:
            raise ValueError(
                f"Ema.decay is {self.decay}, so the average would follow each update at once; use the share that is "
                "kept, as two public runs did not: Ema(0.995) keeps 99.5 %."
            )
        if self.half_life_in_steps > LONGEST_HALF_LIFE_IN_STEPS:
            raise ValueError(
                f"Ema.decay is {self.decay}, so half of an old weight stays for {self.half_life_in_steps:,.0f} "
                "updates, longer than any run; use a smaller decay: Ema(0.99999) keeps half for 69,000."
            )
        if self.name == HOT or not NAME.fullmatch(self.name):
            raise ValueError(
                f'Ema.name is {self.name!r}; use small letters, digits, "_" and "-", and not {HOT!r}, the name of the '
                "weights themselves."
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
        """Return the share of the average that the update after `step` finished ones keeps; 1 where it has no turn."""
        return 1.0 if (step + 1) % self.every_steps else self.decay**self.every_steps


def average_named(averages: Iterable[Ema], name: str | None, *, owner: str) -> Ema:
    """Return the average called `name`, or the first for None.

    Raises:
        ValueError: there is none; the message lists those that `owner` keeps.
    """
    kept = {average.name: average for average in averages}
    if name is None and kept:
        return next(iter(kept.values()))
    if name not in kept:
        if not kept:
            raise ValueError(f"{owner} keeps no average; add Ema(...) to its averages.")
        raise ValueError(
            f"{owner} keeps the averages {', '.join(kept)}, not {name!r}; use one of them, or add "
            "Ema(...) to its averages."
        )
    return kept[name]
