"""Bootstrap: the laws that a ladder would give with other weights of its rungs, and the intervals they give."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from runtime.scaling.curves import Interval
from runtime.scaling.fit import Fit
from runtime.scaling.law import ScalingLaw

PRIOR_DEGREES = 1
"""Weight, in sizes, of the prior that sizes differ as much as rungs of one size; few sizes tell little themselves."""


@dataclasses.dataclass(frozen=True)
class Replicate:
    """A law of the reweighted rungs, and the noise of one run around it."""

    law: ScalingLaw
    noise: float
    """Drawn log ratio of a run's loss and the law's."""


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """The law of all rungs and its replicates."""

    law: ScalingLaw
    replicates: tuple[Replicate, ...]
    confidence: float
    """Share of the replicates inside an interval, such as 0.95."""

    @property
    def share_at_bounds(self) -> float:
        """Share of the replicates whose alpha or beta is at a bound of the fit."""
        return sum(each.law.is_at_bound for each in self.replicates) / len(self.replicates)

    @property
    def determines_optimum(self) -> bool:
        """Whether no interval of an exponent may end at a bound of the fit, which no rung has set."""
        return self.share_at_bounds <= (1 - self.confidence) / 2

    def interval(self, value: Callable[[ScalingLaw], float]) -> Interval:
        """Return a value of the law with its interval, which holds the uncertainty of the law alone."""
        return interval_around(value(self.law), [value(each.law) for each in self.replicates], self.confidence)

    def prediction(self, num_parameters: float, num_tokens: float) -> Interval:
        """Return the loss of one run with its interval, which holds the noise of a run too."""
        found = [each.law.loss(num_parameters, num_tokens) * math.exp(each.noise) for each in self.replicates]
        return interval_around(self.law.loss(num_parameters, num_tokens), found, self.confidence)


class SizeEffects:
    """The residuals of a fit, split into what the rungs of a size share and the rest.

    Rungs of a size branch off one training run, so that a part of their noise is one draw.
    """

    def __init__(self, fit: Fit) -> None:
        residuals = np.array(
            [math.log(rung.loss / fit.law.loss(rung.num_parameters, rung.num_tokens)) for rung in fit.rungs]
        )
        sizes, self.size_of_rung = np.unique([rung.num_parameters for rung in fit.rungs], return_inverse=True)
        self.num_sizes, num_rungs = len(sizes), len(residuals)
        rungs_of_size = np.bincount(self.size_of_rung)
        means = np.bincount(self.size_of_rung, residuals) / rungs_of_size
        within = residuals - means[self.size_of_rung]
        # The law spends two coefficients on differences within sizes, and three on those between sizes.
        free_within = max(1, num_rungs - self.num_sizes - 2)
        self.within = within * math.sqrt(num_rungs / free_within)
        """Noise of a rung around its size, widened by the coefficients' share."""
        variance_within = float(within @ within) / free_within
        self._variance_of_mean = variance_within * float(np.mean(1 / rungs_of_size))
        self._degrees = self.num_sizes - 3 + PRIOR_DEGREES
        self._sum_of_squares = float(means @ means) + PRIOR_DEGREES * (variance_within + self._variance_of_mean)

    def draw_deviation(self, key: np.random.Generator) -> float:
        """Return a standard deviation of the sizes' effects that the residuals allow."""
        variance = self._sum_of_squares / key.chisquare(self._degrees) - self._variance_of_mean
        return math.sqrt(max(0.0, variance))


def bootstrap(fit: Fit, *, num_replicates: int, confidence: float, seed: int) -> Bootstrap:
    """Return the law and its replicates: laws of reweighted rungs and shifted sizes, and the noise of one run."""
    effects = SizeEffects(fit)
    weights = bootstrap_weights(len(fit.rungs), num_replicates=num_replicates, seed=seed)
    shifts, noise = np.empty_like(weights), []
    for index in range(num_replicates):
        key = _key(seed, index, _NOISE)
        deviation = effects.draw_deviation(key)
        shifts[index] = deviation * key.standard_normal(effects.num_sizes)[effects.size_of_rung]
        noise.append(deviation * key.standard_normal() + float(key.choice(effects.within)))
    return Bootstrap(fit.law, tuple(map(Replicate, fit.weighted(weights, shifts), noise)), confidence)


def bootstrap_weights(count: int, *, num_replicates: int, seed: int) -> Float[np.ndarray, "replicates rungs"]:
    """Return weights of `count` rungs or models from a flat Dirichlet distribution (Rubin 1981), with a mean of 1.

    Drawing rungs with replacement instead could drop all rungs of a size. Each replicate has a key of its own, so that
    more replicates change no earlier one.
    """
    return np.stack([_key(seed, index, _WEIGHTS).dirichlet(np.ones(count)) * count for index in range(num_replicates)])


def interval_around(value: float, replicates: Sequence[float], confidence: float) -> Interval:
    """Return a value with the interval that holds the share `confidence` of its replicates."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(replicates, [outside, 1 - outside])
    return Interval(value, float(low), float(high))


_WEIGHTS, _NOISE = 0, 1
"""Uses of a replicate's key."""


def _key(seed: int, index: int, use: int) -> np.random.Generator:
    return np.random.default_rng([seed, index, use])
