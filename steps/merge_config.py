"""Merge config: the checkpoints of a merge and their coefficients."""

import math

from pydantic import BaseModel, ValidationInfo, field_validator

from marin_dag.graph.step import Input
from runtime.optim.ema import HOT
from steps.phase_result import TrainPhaseResult

TOLERANCE = 1e-6
"""Largest distance of the sum of the coefficients from 1; decimal fractions such as 0.1 do not add up exactly."""


class MergeCheckpointsConfig(BaseModel, frozen=True, extra="forbid"):
    """The weights to average: of milestones of a phase, of branches, or of imports, all of one model."""

    checkpoints: tuple[Input[TrainPhaseResult], ...]
    coefficients: tuple[float, ...]
    """Share of each checkpoint in the sum: positive, and 1 together."""
    weights: str = HOT
    """ "hot" for the trained weights, or the name of an average that every phase keeps."""

    @field_validator("checkpoints")
    @classmethod
    def _check_distinct(cls, checkpoints: tuple[Input[TrainPhaseResult], ...]) -> tuple[Input[TrainPhaseResult], ...]:
        if len(checkpoints) < 2:  # `Field(min_length=2)` would count only those that are of the right type
            raise ValueError(f"there are {len(checkpoints)}; a merge takes at least two checkpoints.")
        for checkpoint in checkpoints:
            if sum(other.key == checkpoint.key for other in checkpoints) > 1:
                raise ValueError(f"{checkpoint.typed} is listed twice; list it once, with the sum of its coefficients.")
        return checkpoints

    @field_validator("coefficients")
    @classmethod
    def _check_sum(cls, coefficients: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        num_checkpoints = len(info.data.get("checkpoints", coefficients))
        if len(coefficients) != num_checkpoints:
            raise ValueError(f"there are {len(coefficients)}, for {num_checkpoints} checkpoints; give one for each.")
        if not all(value > 0 for value in coefficients):
            raise ValueError(f"they are {coefficients}; each must be above 0. Remove checkpoints that have no share.")
        total = math.fsum(coefficients)
        if coefficients and not abs(total - 1) <= TOLERANCE:  # none: `checkpoints` is refused already
            raise ValueError(f"their sum is {total:g}; divide each by it, so that they add up to 1.")
        return coefficients


def uniform(num_checkpoints: int) -> tuple[float, ...]:
    """Return equal coefficients."""
    return (1 / max(num_checkpoints, 1),) * num_checkpoints
