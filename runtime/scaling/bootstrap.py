"""Bootstrap: the laws that a ladder would give with other weights of its rungs, and the intervals they give."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from runtime.scaling.law import NUM_COEFFICIENTS, Fit, ScalingLaw


class Interval(NamedTuple):
    """A value between the ends of its interval."""

    value: float
    low: float
    high: float


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

    def interval(self, value: Callable[[ScalingLaw], float]) -> Interval:
        """Return a value of the law with its interval, which holds the uncertainty of the law alone."""
        return interval_around(value(self.law), [value(each.law) for each in self.replicates], self.confidence)

    def prediction(self, num_parameters: float, num_tokens: float) -> Interval:
        """Return the loss of one run with its interval, which holds the noise of a run too."""
        found = [each.law.loss(num_parameters, num_tokens) * math.exp(each.noise) for each in self.replicates]
        return interval_around(self.law.loss(num_parameters, num_tokens), found, self.confidence)


def bootstrap(fit: Fit, *, num_replicates: int, confidence: float, seed: int) -> Bootstrap:
    """Return the law and its replicates, with noise from the residuals, widened by the coefficients' share."""
    num_rungs = len(fit.rungs)
    residuals = [math.log(rung.loss / fit.law.loss(rung.num_parameters, rung.num_tokens)) for rung in fit.rungs]
    widening = math.sqrt(num_rungs / (num_rungs - NUM_COEFFICIENTS))
    laws = fit.weighted(bootstrap_weights(num_rungs, num_replicates=num_replicates, seed=seed))
    noise = [float(_key(seed, index, _NOISE).choice(residuals)) * widening for index in range(num_replicates)]
    return Bootstrap(fit.law, tuple(map(Replicate, laws, noise)), confidence)


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
