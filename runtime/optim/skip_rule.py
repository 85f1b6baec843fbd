"""Skip rule: which updates of a run are left out, as a plain value (the arithmetic is in `skipping`)."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class SkipRule:
    """Leaves out an update whose loss or gradient norm is not finite, or far above those of the last good updates.

    Far is more than `sigma` standard deviations above their mean, a deviation counting as a thousandth of the mean at
    least. A batch without anything to predict has no loss, and is left out too. A step that is left out still counts:
    its batch is used up, and schedules go on. What it showed never enters the mean.
    """

    window_steps: int
    """Good updates that the mean and the deviation are taken over."""
    sigma: float
    warmup_steps: int
    """Good updates before a finite value can be bad."""
    max_consecutive: int
    """So many left out one after the other stop the run: it is the state that is bad then, and no longer a batch."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f"SkipRule.sigma is {self.sigma}; public runs take 6 standard deviations.")
        if not 2 <= self.warmup_steps <= self.window_steps:
            raise ValueError(
                f"SkipRule.warmup_steps is {self.warmup_steps} and window_steps {self.window_steps}; a deviation takes "
                "two values at least, and the window holds no more than its size: 2 <= warmup_steps <= window_steps."
            )
        if self.max_consecutive < 1:
            raise ValueError(f"SkipRule.max_consecutive is {self.max_consecutive}; write None for no rule at all.")
