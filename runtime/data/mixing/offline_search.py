"""Offline search: the best mixture, by a law that is fitted to small runs (proxies) under different mixtures.

Mixtures are drawn as in RegMix (arXiv:2407.01492). The law is that of arXiv:2403.16952: the loss of a domain is the sum
of a floor and an exponential of a linear function of the shares.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

SMALLEST_SHARE = 1e-3
"""Least share in a drawn mixture, so that each proxy has every source."""
FLOORS = (0.0, 0.5, 0.8, 0.9, 0.95)
"""Floors to try, as parts of the lowest loss of a domain."""
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Penalties of the ridge regression to try."""
ITERATIONS = 300
BISECTIONS = 60
INTERVAL = (5.0, 95.0)
"""Percentiles of the bootstrap."""

Shares = Float[np.ndarray, "proxies sources"]
Losses = Float[np.ndarray, "proxies domains"]
Bounds = Float[np.ndarray, "sources"]


@dataclasses.dataclass(frozen=True)
class MixtureLaw:
    """The law of each domain, and how it was chosen."""

    floors: Float[np.ndarray, "domains"]
    offsets: Float[np.ndarray, "domains"]
    slopes: Float[np.ndarray, "sources domains"]
    ridges: Float[np.ndarray, "domains"]
    errors: Float[np.ndarray, "domains"]
    """Root mean square error for proxies that the fit leaves out, one at a time."""

    def predicted(self, shares: Float[np.ndarray, "... sources"]) -> Float[np.ndarray, "... domains"]:
        """Return the loss of each domain under a mixture."""
        return self.floors + np.exp(self.offsets + shares @ self.slopes)


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


def fit_law(shares: Shares, losses: Losses) -> MixtureLaw:
    """Fit each domain by ridge regression of log(loss - floor), at the floor and ridge of least leave-one-out error."""
    hats = {ridge: _hat(shares, ridge) for ridge in RIDGES}
    fits = [_fit_domain(hats, losses[:, domain]) for domain in range(losses.shape[1])]
    floors, ridges, errors = (np.array(values) for values in zip(*fits, strict=True))
    offsets, slopes = _solved(shares, losses, floors, ridges)
    return MixtureLaw(floors, offsets, slopes, ridges, errors)


def refit(law: MixtureLaw, shares: Shares, losses: Losses) -> MixtureLaw:
    """Fit other proxies with the floors and ridges of a law."""
    offsets, slopes = _solved(shares, losses, law.floors, law.ridges)
    return dataclasses.replace(law, offsets=offsets, slopes=slopes)


def best_mixture(law: MixtureLaw, lower: Bounds, upper: Bounds) -> Float[np.ndarray, "sources"]:
    """Return the shares within the bounds that minimise the mean predicted loss, a convex function of the shares."""
    shares, step = projected(np.full(len(lower), 1 / len(lower)), lower, upper), 1.0
    value = law.predicted(shares).mean()
    for _ in range(ITERATIONS):
        gradient = law.slopes @ (law.predicted(shares) - law.floors) / len(law.floors)
        while step > 1e-12:
            moved = projected(shares - step * gradient, lower, upper)
            found = law.predicted(moved).mean()
            if found <= value - np.sum((moved - shares) ** 2) / (4 * step):
                break
            step /= 2
        if value - found < 1e-12:
            break
        shares, value, step = moved, found, 2 * step
    return shares


def projected(point: Bounds, lower: Bounds, upper: Bounds) -> Bounds:
    """Return the nearest shares within the bounds that add up to 1."""
    low, high = (point - upper).min(), (point - lower).max()
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(point - middle, lower, upper).sum() > 1 else (low, middle)
    found: Bounds = np.clip(point - high, lower, upper)
    return found


@dataclasses.dataclass(frozen=True)
class SearchedMixture:
    """The best mixture, with 90 % intervals: of shares over resampled proxies, of the gain over resampled errors."""

    shares: Float[np.ndarray, "sources"]
    share_intervals: Float[np.ndarray, "2 sources"]
    gain: float
    """Predicted fall of the mean loss against the first proxy's mixture, less what the choice of the best adds."""
    gain_interval: tuple[float, float]


def search(
    law: MixtureLaw, shares: Shares, losses: Losses, lower: Bounds, upper: Bounds, *, num_bootstraps: int, seed: int
) -> SearchedMixture:
    """Return the best mixture within the bounds, and its gain without the optimism of a choice by the same proxies."""
    best = best_mixture(law, lower, upper)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(num_bootstraps):
        chosen = rng.integers(0, len(shares), len(shares))
        found.append(best_mixture(refit(law, shares[chosen], losses[chosen]), lower, upper))
    intervals = np.percentile(np.stack(found), INTERVAL, axis=0)
    gain = _gain(law, shares[0], best)
    logs = np.log(losses - law.floors)
    even = dataclasses.replace(law, offsets=logs.mean(axis=0), slopes=np.zeros_like(law.slopes))
    noise, bounds = _noise(law, shares, logs), (lower, upper)
    optimism = [_optimism(world, noise, shares, bounds, num_bootstraps, rng) for world in (law, even)]
    low, high = (np.percentile(optimism, percentile, axis=1) for percentile in INTERVAL)
    return SearchedMixture(
        best, intervals, gain - float(np.median(optimism)), (float(gain - high.max()), float(gain - low.min()))
    )


def _noise(law: MixtureLaw, shares: Shares, logs: Losses) -> Losses:
    """Return the errors of a domain's logarithms, for fits without their proxy, or, if smaller, their deviations."""
    hats = [_hat(shares, ridge) for ridge in law.ridges]
    errors = np.stack(
        [(values - hat @ values) / (1 - np.diag(hat)) for values, hat in zip(logs.T, hats, strict=True)], axis=1
    )
    errors -= errors.mean(axis=0)
    deviations = logs - logs.mean(axis=0)
    noise: Losses = np.where(errors.std(axis=0) < deviations.std(axis=0), errors, deviations)
    return noise


def _optimism(
    world: MixtureLaw,
    noise: Losses,
    shares: Shares,
    bounds: tuple[Bounds, Bounds],
    num_bootstraps: int,
    rng: np.random.Generator,
) -> list[float]:
    """Return by how much searches in a world whose law is known predict more than the gain of what they find.

    Each one fits and searches the losses of the world with resampled noise. The law of the proxies alone is too kind a
    world: where no mixture matters, it has an effect. So `search` takes the wider of this one and one without effect.
    """
    found = []
    for _ in range(num_bootstraps):
        logs = world.offsets + shares @ world.slopes + noise[rng.integers(0, len(shares), len(shares))]
        law = fit_law(shares, world.floors + np.exp(logs))
        best = best_mixture(law, *bounds)
        found.append(_gain(law, shares[0], best) - _gain(world, shares[0], best))
    return found


def _gain(law: MixtureLaw, before: Bounds, after: Bounds) -> float:
    return float(law.predicted(before).mean() - law.predicted(after).mean())


def _fit_domain(hats: Mapping[float, np.ndarray], losses: Float[np.ndarray, "proxies"]) -> tuple[float, float, float]:
    """Return floor, ridge and leave-one-out error of the best fit of one domain; `hats` are by ridge."""
    found = []
    for part in FLOORS:
        floor = part * losses.min()
        logs = np.log(losses - floor)
        for ridge, hat in hats.items():
            left_out = logs - (logs - hat @ logs) / (1 - np.diag(hat))
            error = np.sqrt(np.mean((floor + np.exp(left_out) - losses) ** 2))
            found.append((float(error), float(floor), ridge))
    error, floor, ridge = min(found)
    return floor, ridge, error


def _hat(shares: Shares, ridge: float) -> Float[np.ndarray, "proxies proxies"]:
    """Return the matrix from observed to fitted values of a ridge regression with a free offset."""
    centred = shares - shares.mean(axis=0)
    inner = centred.T @ centred + ridge * np.eye(shares.shape[1])
    hat: Shares = centred @ np.linalg.solve(inner, centred.T) + 1 / len(shares)
    return hat


def _solved(
    shares: Shares, losses: Losses, floors: Sequence[float] | np.ndarray, ridges: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    centre = shares.mean(axis=0)
    centred = shares - centre
    slopes = np.empty((shares.shape[1], losses.shape[1]))
    means = np.empty(losses.shape[1])
    for domain, (floor, ridge) in enumerate(zip(floors, ridges, strict=True)):
        logs = np.log(losses[:, domain] - floor)
        means[domain] = logs.mean()
        inner = centred.T @ centred + ridge * np.eye(shares.shape[1])
        slopes[:, domain] = np.linalg.solve(inner, centred.T @ (logs - means[domain]))
    return means - centre @ slopes, slopes
