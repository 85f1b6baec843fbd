"""Mixture: the share of each source at any step; a plain value without JAX, so that a plan can read it."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from fractions import Fraction

WHOLE = 1 << 60
"""A sequence in units of a share: over 10**15 sequences the rounding of a share stays below one."""


def apportioned(weights: Mapping[str, float | Fraction], total: int = WHOLE) -> dict[str, int]:
    """Split `total` in proportion to `weights`, to the last unit: largest remainder first, equal ones by name.

    Weights are not negative and not all zero; each counts as the exact number that it is.
    """
    ratios = {name: weight.as_integer_ratio() for name, weight in sorted(weights.items())}
    common = math.lcm(*(below for _, below in ratios.values()))
    exact = {name: above * (common // below) for name, (above, below) in ratios.items()}
    divisor = sum(exact.values())
    shares = {name: value * total // divisor for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (-(exact[name] * total % divisor), name))
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


@dataclasses.dataclass(frozen=True)
class MixtureSegment:
    """Weights of the sources from `start_step` on."""

    start_step: int
    weights: dict[str, float]
    """Positive numbers of any scale; only their ratios count."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("MixtureSegment.weights is empty; name at least one source.")
        for source, weight in self.weights.items():
            if not (isinstance(weight, int | float) and math.isfinite(weight) and weight > 0):
                raise ValueError(
                    f"MixtureSegment.weights[{source!r}] is {weight!r}; a weight is a finite number above zero. "
                    "Leave the source out instead."
                )
        # Checked here and not in the loader, which may reach this segment after weeks.
        for source, share in apportioned(self.weights).items():
            if not share:
                raise ValueError(
                    f"MixtureSegment.weights[{source!r}] is {self.weights[source]:g}, less than 1 / 2**60 of the "
                    "mixture, which no run is long enough to draw. Leave the source out."
                )

    def shares(self) -> dict[str, float]:
        """Return the weights scaled to sum to one."""
        total = math.fsum(self.weights.values())
        return {source: weight / total for source, weight in self.weights.items()}


@dataclasses.dataclass(frozen=True)
class MixtureSchedule:
    """Weights that may change at any step; a change takes effect at its `start_step`."""

    segments: tuple[MixtureSegment, ...]

    def __post_init__(self) -> None:
        starts = [segment.start_step for segment in self.segments]
        if not starts:
            raise ValueError(
                "MixtureSchedule.segments is empty; write at least one segment, the first from step 0: "
                '{"start_step": 0, "weights": {SOURCE: WEIGHT}}.'
            )
        if starts[0] != 0:
            raise ValueError(f"MixtureSchedule.segments begin at steps {starts}; the first must begin at step 0.")
        if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
            raise ValueError(f"MixtureSchedule.segments begin at steps {starts}; each must begin after the one before.")

    @classmethod
    def constant(cls, weights: dict[str, float]) -> "MixtureSchedule":
        """Return a schedule with the same weights at every step."""
        return cls((MixtureSegment(0, weights),))

    def segment_at(self, step: int) -> MixtureSegment:
        """Return the segment in force for the update that follows `step` finished ones."""
        return next(segment for segment in reversed(self.segments) if step >= segment.start_step)

    def shares_at(self, step: int) -> dict[str, float]:
        """Return the share of each source at `step`, summing to one."""
        return self.segment_at(step).shares()

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted({source for segment in self.segments for source in segment.weights}))
