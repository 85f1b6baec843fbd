"""Scaling law: loss as a function of parameters N and tokens D, L = E + A / N^alpha + B / D^beta.

A plan reads laws, so this module does without NumPy; `runtime.scaling.fit` fits them.
"""

import dataclasses
from typing import NamedTuple

FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""FLOPs of forward and backward matrix products, without those of attention (arXiv:2203.15556)."""
MIN_EXPONENT, MAX_EXPONENT = 1e-3, 3.0
"""Bounds of alpha and beta; a fit at one of them is refused."""
MIN_VALUES = 3
"""Sizes, and lengths, that a law needs."""
MIN_RUNGS = 6
"""Rungs that a law needs: one more than its coefficients."""


class Rung(NamedTuple):
    """A finished run of a ladder."""

    num_parameters: float
    num_tokens: float
    loss: float
    """Any loss above 0, such as bits per byte."""


class Optimum(NamedTuple):
    """The best model for a number of FLOPs."""

    num_parameters: float
    num_tokens: float
    loss: float


@dataclasses.dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = irreducible + parameter_factor / N^alpha + token_factor / D^beta: E, A and B of arXiv:2203.15556."""

    irreducible: float
    parameter_factor: float
    token_factor: float
    alpha: float
    beta: float

    @property
    def is_at_bound(self) -> bool:
        """Whether alpha or beta is at, or within 1 % of, a bound of the fit, so that the rungs do not determine it."""
        exponents = (self.alpha, self.beta)
        return min(exponents) < 1.01 * MIN_EXPONENT or max(exponents) > 0.99 * MAX_EXPONENT

    def loss(self, num_parameters: float, num_tokens: float) -> float:
        """Return the expected loss of a run."""
        of_parameters = self.parameter_factor / num_parameters**self.alpha
        return self.irreducible + of_parameters + self.token_factor / num_tokens**self.beta

    def optimum(self, flops: float) -> Optimum:
        """Return the size and the length with the least loss for so many FLOPs (equation 4 of arXiv:2203.15556)."""
        ratio = self.alpha * self.parameter_factor / (self.beta * self.token_factor)
        product = flops / FLOPS_PER_PARAMETER_AND_TOKEN
        num_parameters = (ratio * product**self.beta) ** (1 / (self.alpha + self.beta))
        num_tokens = product / num_parameters
        return Optimum(num_parameters, num_tokens, self.loss(num_parameters, num_tokens))
