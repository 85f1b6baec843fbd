"""Skip rule: which updates of a run are skipped, as a plain value (the arithmetic is in `skipping`)."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class SkipRule:
    """Skip a step whose loss or gradient norm is not finite, or far above those of the last good steps.

    Far is more than `sigma` standard deviations above their mean; a deviation is at least a thousandth of the mean. A
    step whose batch has no target is skipped too. A skipped step still counts: its batch is used up, and schedules
    continue.
    """

    window_steps: int
    """Good updates that the mean and the deviation are taken over."""
    sigma: float
    warmup_steps: int
    """Good updates before a finite value can be bad."""
    max_consecutive: int
    """Updates skipped in a row that stop the run: then the state is bad, and no longer a batch."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f"SkipRule.sigma is {self.sigma}; use a number above 0 (public runs use 6).")
        if not 2 <= self.warmup_steps <= self.window_steps:
            raise ValueError(
                f"SkipRule.warmup_steps is {self.warmup_steps} and window_steps {self.window_steps}; use "
                "2 <= warmup_steps <= window_steps: a deviation needs two values, and the window holds no more."
            )
        if self.max_consecutive < 1:
            raise ValueError(
                f"SkipRule.max_consecutive is {self.max_consecutive}; use at least 1, or None for no skip rule."
            )
