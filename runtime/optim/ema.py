"""Exponential moving average of the weights: the setting, as a plain value (the arithmetic is in `averaging`)."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Ema:
    """`average <- decay * average + (1 - decay) * weights` after every update, starting as a copy of the weights."""

    decay: float

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(
                f"Ema.decay is {self.decay}; it is the share of the average that is kept, so 0 < decay < 1."
            )
        if self.decay < 0.5:
            raise ValueError(
                f"Ema.decay is {self.decay}: the average would follow each update almost at once; 0.995 keeps 99.5 % "
                "of it. Two public runs had the direction backwards: pass the share that is kept."
            )

    @property
    def half_life_in_steps(self) -> float:
        """Updates after which an old weight counts half (138 at decay 0.995)."""
        return math.log(0.5) / math.log(self.decay)
