"""Initialization: the distribution of a model's first matrices, as plain values without JAX."""

import dataclasses
import math
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Initialization:
    """Normal distribution with mean 0 for every matrix; norms start at one. The default is Hugging Face's."""

    scale: Literal["fixed", "fan_in"] = "fixed"
    """`fixed`: the standard deviation is `factor`. `fan_in`: it is `factor` over the square root of the number of a
    matrix's inputs, which for an embedding is the hidden size."""
    factor: float = 0.02
    truncated_at: float | None = None
    """Limit of a value, in standard deviations; None draws from the whole normal distribution."""
    depth_scale: Literal["none", "residual"] = "none"
    """`residual` divides matrices that add to the residual stream by sqrt(2 * num_hidden_layers), as GPT-2 does."""

    def __post_init__(self) -> None:
        for field, unit in (("factor", "a standard deviation"), ("truncated_at", "standard deviations")):
            value = getattr(self, field)
            if value is None and field == "truncated_at":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"Initialization.{field} is {value!r}; use {unit}, a finite number above 0.")

    def limit(self, fan_in: int) -> float:
        """Return the largest absolute value of a matrix with `fan_in` inputs."""
        return math.inf if self.truncated_at is None else self.truncated_at * self.nominal_deviation(fan_in)

    def nominal_deviation(self, fan_in: int) -> float:
        """Return the standard deviation of a matrix with `fan_in` inputs before truncation."""
        return self.factor if self.scale == "fixed" else self.factor / math.sqrt(fan_in)

    def deviation(self, fan_in: int) -> float:
        """Return the standard deviation of a matrix with `fan_in` inputs: 0.9866 of the nominal one if cut at three."""
        nominal = self.nominal_deviation(fan_in)
        if self.truncated_at is None:
            return nominal
        density = math.exp(-(self.truncated_at**2) / 2) / math.sqrt(2 * math.pi)
        kept = math.erf(self.truncated_at / math.sqrt(2))
        return nominal * math.sqrt(1 - 2 * self.truncated_at * density / kept)


FIXED = Initialization()
LEVANTER = Initialization(scale="fan_in", factor=1.0, truncated_at=3.0)
"""Distribution of Levanter's linear layers and embeddings, whose models ignore `initializer_range`."""
