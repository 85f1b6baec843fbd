"""Offline search: the best mixture by a law fitted to small runs (proxies) under different mixtures.

Mixtures are drawn as in RegMix (arXiv:2407.01492). The law is that of arXiv:2403.16952: the loss of a domain is the sum
of a floor and an exponential of a linear function of the shares.

Given a floor, the law is a linear regression of log(loss - floor). The slopes have a normal prior around 0, which
corrects the optimism of a mixture that is chosen for its predicted loss. Floors, prior width and noise are drawn from
their posterior given the proxies.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

SMALLEST_SHARE = 1e-3
"""Least share in a drawn mixture, so that each proxy has every source."""
FLOORS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Floors to try, as fractions of the lowest loss of a domain."""
RIDGES = tuple(10.0**exponent for exponent in range(-6, 3))
"""Noise variances to try, as multiples of a slope's prior variance; the last one leaves no effect of the mixture."""
ROUNDING = 1e-24
"""Sum of squares below which a regression leaves nothing but rounding errors."""
ITERATIONS = 300
SMALLEST_MOVE = 1e-5
"""Change of a share below which the search ends."""
BISECTIONS = 40
INTERVAL = (5.0, 95.0)
"""Percentiles of the draws that bound an interval."""

Shares = Float[np.ndarray, "proxies sources"]
Losses = Float[np.ndarray, "proxies domains"]
Mixtures = Float[np.ndarray, "*draws sources"]
Bounds = Float[np.ndarray, "sources"]


@dataclasses.dataclass(frozen=True)
class MixtureLaw:
    """The law of each domain, or draws of it."""

    floors: Float[np.ndarray, "*draws domains"]
    offsets: Float[np.ndarray, "*draws domains"]
    slopes: Float[np.ndarray, "*draws sources domains"]

    def predicted(self, shares: Float[np.ndarray, "... sources"]) -> Float[np.ndarray, "... domains"]:
        """Return the loss of each domain under a mixture; draws of the law take one mixture each."""
        return self.floors + np.exp(self.offsets + (shares[..., None, :] @ self.slopes)[..., 0, :])

    def mean(self, shares: Float[np.ndarray, "... sources"]) -> Float[np.ndarray, "..."]:
        """Return the mean loss of the domains."""
        return self.predicted(shares).mean(axis=-1)


def draw_mixtures(
    natural: Mapping[str, float], count: int, *, seed: int, strengths: tuple[float, float] = (2.0, 30.0)
) -> list[dict[str, float]]:
    """Return the natural mixture and `count - 1` draws of a Dirichlet distribution around it.

    The concentration is log-uniform between the `strengths`. A lower one gives mixtures farther from the natural one.
    """
    rng = np.random.default_rng(seed)
    names = sorted(natural)
    prior = np.array([natural[name] for name in names], np.float64)
    found = [prior / prior.sum()]
    while len(found) < count:
        strength = np.exp(rng.uniform(*np.log(strengths)))
        drawn = np.maximum(rng.dirichlet(found[0] * strength), SMALLEST_SHARE)
        found.append(drawn / drawn.sum())
    return [dict(zip(names, (round(float(share), 6) for share in shares), strict=True)) for shares in found]


class Posterior:
    """Probabilities of the law's parameters, given the proxies.

    All domains share one ratio of noise to prior, since few proxies hardly determine it for a single domain. A proxy's
    noise, from its seed and its batches, correlates between domains; each pair of domains has the mean correlation.
    """

    def __init__(self, shares: Shares, losses: Losses) -> None:
        self._losses, self._middle = losses, shares.mean(axis=0)
        self._left, self._scale, self._right = np.linalg.svd(shares - self._middle, full_matrices=False)
        self._floors = np.multiply.outer(FLOORS, losses.min(axis=0))
        evidence = np.stack([self._log_evidence(floor) for floor in self._floors])
        # A domain with the same loss in every proxy has neither slopes nor noise, so it does not count in their ratio.
        self._varies = np.ptp(losses, axis=0) > 0
        evidence[:, ~self._varies] = 0.0
        evidence -= evidence.max(axis=(0, 2), keepdims=True)
        self._of_floors = np.exp(evidence)
        logs = np.log(self._of_floors.sum(axis=0)).sum(axis=0)
        self._of_ridges = np.exp(logs - logs.max())
        shared = self._shared_noise()
        # Domains with the same noise are not independent evidence.
        self._of_ridges **= 1 / shared
        self._of_mean, self._of_rest = shared, (losses.shape[1] - shared) / max(1, losses.shape[1] - 1)

    def _shared_noise(self) -> float:
        """Return the variance of the domains' summed noise over that of independent noise."""
        num_domains = self._losses.shape[1]
        _, hat, logs = self._most_probable()
        noises = (logs - hat @ logs)[:, self._varies]
        correlations = np.eye(num_domains)
        if noises.size:
            correlations[np.ix_(self._varies, self._varies)] = np.corrcoef(noises.T)
        return float(np.clip(correlations.sum() / num_domains, 1.0, num_domains))

    def draw(self, num_draws: int, *, seed: int) -> MixtureLaw:
        """Return laws drawn from the posterior."""
        rng = np.random.default_rng(seed)
        num_proxies, num_domains = self._losses.shape
        chosen = rng.choice(len(RIDGES), num_draws, p=self._of_ridges / self._of_ridges.sum())
        weights = self._of_floors[:, :, chosen].cumsum(axis=0)
        rows = (weights < rng.uniform(size=weights.shape[1:]) * weights[-1]).sum(axis=0).T
        floors = self._floors[rows, np.arange(num_domains)]
        ridges = np.array(RIDGES)[chosen]
        logs = np.log(self._losses.T - floors[:, :, None])
        noise = np.sqrt(self._rest(logs, ridges[:, None, None]) / rng.chisquare(num_proxies - 1, num_draws)[:, None])
        found = (logs @ self._left) / noise[:, :, None]
        normal = rng.normal(size=found.shape)
        along = np.zeros_like(found)
        for variance, part in ((self._of_mean, _mean), (self._of_rest, lambda each: each - _mean(each))):
            width = self._scale**2 + variance * ridges[:, None, None]
            along += part(found) * self._scale / width + part(normal) * np.sqrt(variance / width)
        slopes = (along * noise[:, :, None]) @ self._right
        return MixtureLaw(floors, logs.mean(axis=2) - slopes @ self._middle, np.moveaxis(slopes, 1, 2))

    def errors(self) -> Float[np.ndarray, "domains"]:
        """Return each domain's leave-one-out error: the root mean square over the proxies."""
        floor, hat, logs = self._most_probable()
        left_out = logs - (logs - hat @ logs) / (1 - np.diag(hat))[:, None]
        found: np.ndarray = np.sqrt(np.mean((floor + np.exp(left_out) - self._losses) ** 2, axis=0))
        return found

    def _most_probable(self) -> tuple[Float[np.ndarray, "domains"], Float[np.ndarray, "proxies proxies"], Losses]:
        """Return the most probable floors, the matrix from observed to fitted logarithms, and the logarithms."""
        ridge = int(np.argmax(self._of_ridges))
        floor = self._floors[np.argmax(self._of_floors[:, :, ridge], axis=0), np.arange(self._losses.shape[1])]
        hat = (self._left * self._kept(RIDGES[ridge])) @ self._left.T + 1 / len(self._losses)
        return floor, hat, np.log(self._losses - floor)

    def _log_evidence(self, floors: Float[np.ndarray, "domains"]) -> Float[np.ndarray, "domains ridges"]:
        """Return the logarithm of the probability of each domain's losses, up to a constant, for each ridge."""
        logs = np.log(self._losses - floors).T
        rests = np.stack([self._rest(logs, ridge) for ridge in RIDGES], axis=1)
        widths = np.array([np.log1p(self._scale**2 / ridge).sum() for ridge in RIDGES])
        found: np.ndarray = -0.5 * (widths + (logs.shape[1] - 1) * np.log(rests)) - logs.sum(axis=1, keepdims=True)
        return found

    def _kept(self, ridge: float | np.ndarray) -> np.ndarray:
        """Return the share of each principal component of the mixtures that a regression keeps."""
        found: np.ndarray = self._scale**2 / (self._scale**2 + ridge)
        return found

    def _rest(self, logs: Float[np.ndarray, "*rows proxies"], ridge: float | np.ndarray) -> Float[np.ndarray, "*rows"]:
        """Return each row's residual sum of squares, with the penalty of its slopes."""
        centred = logs - logs.mean(axis=-1, keepdims=True)
        kept = ((centred @ self._left) ** 2 * self._kept(ridge)).sum(axis=-1)
        found: np.ndarray = np.maximum((centred**2).sum(axis=-1) - kept, ROUNDING)
        return found


def _mean(each: Float[np.ndarray, "draws domains components"]) -> Float[np.ndarray, "draws 1 components"]:
    found: np.ndarray = each.mean(axis=1, keepdims=True)
    return found


def best_mixture(law: MixtureLaw, lower: Bounds, upper: Bounds) -> Mixtures:
    """Return the shares within the bounds that minimise the mean predicted loss, a convex function of the shares.

    Draws of a law have one mixture each.
    """
    draws = law.floors.shape[:-1]
    shares = np.broadcast_to(projected(np.full(len(lower), 1 / len(lower)), lower, upper), (*draws, len(lower)))
    step, value = np.ones((*draws, 1)), law.mean(shares)
    for _ in range(ITERATIONS):
        slope = (law.slopes @ (law.predicted(shares) - law.floors)[..., None])[..., 0] / law.floors.shape[-1]
        moved = projected(shares - step * slope, lower, upper)
        if np.abs(moved - shares).max() < SMALLEST_MOVE:
            break
        found = law.mean(moved)
        better = (found <= value - np.sum((moved - shares) ** 2, axis=-1) / (4 * step[..., 0]))[..., None]
        shares, value = np.where(better, moved, shares), np.where(better[..., 0], found, value)
        step = np.where(better, 2 * step, step / 2)
    return shares


def projected(point: Mixtures, lower: Bounds, upper: Bounds) -> Mixtures:
    """Return the nearest shares within the bounds that add up to 1."""
    low, high = (point - upper).min(axis=-1, keepdims=True), (point - lower).max(axis=-1, keepdims=True)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_over = np.clip(point - middle, lower, upper).sum(axis=-1, keepdims=True) > 1
        low, high = np.where(is_over, middle, low), np.where(is_over, high, middle)
    found: Mixtures = np.clip(point - high, lower, upper)
    return found


@dataclasses.dataclass(frozen=True)
class SearchedMixture:
    """The best mixture and its gain, with 90 % intervals."""

    shares: Float[np.ndarray, "sources"]
    share_intervals: Float[np.ndarray, "2 sources"]
    gain: float
    """Predicted loss of the first proxy's mixture minus that of the best one, mean over domains."""
    gain_interval: tuple[float, float]


def search(law: MixtureLaw, natural: Bounds, lower: Bounds, upper: Bounds) -> SearchedMixture:
    """Return the mixture within the bounds with the best mean over draws of the law."""
    joined = MixtureLaw(law.floors.ravel(), law.offsets.ravel(), np.moveaxis(law.slopes, 1, 0).reshape(len(lower), -1))
    best = best_mixture(joined, lower, upper)
    gains = law.mean(natural) - law.mean(best)
    low, high = np.percentile(gains, INTERVAL)
    intervals = np.percentile(best_mixture(law, lower, upper), INTERVAL, axis=0)
    return SearchedMixture(best, intervals, float(gains.mean()), (float(low), float(high)))
