"""Fit mixture: the best mixture of a target phase, as predicted from the evaluations of small runs (proxies)."""

import math

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, StepContext, step
from steps.ema_eval import EmaEvalResult
from steps.tokenize import TokenizeResult

SMALLEST_SUM, LARGEST_SUM = 1 - 1e-9, 1 + 1e-9


class FitMixtureConfig(BaseModel, frozen=True, extra="forbid"):
    """The proxies, and the limits of the mixture."""

    mixtures: tuple[dict[str, float], ...]
    """The mixture of each proxy over the same sources; the gain is measured against the first, the natural one."""
    evaluations: tuple[Input[EmaEvalResult], ...]
    """The evaluation of each proxy, in the order of `mixtures`, over the same domains, which count equally."""
    caches: dict[str, Input[TokenizeResult]]
    """The token cache of each source, for its number of tokens."""
    target_tokens: int = Field(ge=1)
    """Length of the phase that the mixture is for."""
    max_epochs: float = Field(gt=0)
    """Most times that the phase may read a source."""
    min_shares: dict[str, float] = {}
    max_shares: dict[str, float] = {}
    num_draws: int = Field(default=200, ge=20)
    """Laws to draw from those that the proxies allow."""
    seed: int = 0


class SourceShare(BaseModel, frozen=True, extra="forbid"):
    """The share of a source, with a 90 % interval over laws that the proxies allow."""

    natural: float
    share: float
    low: float
    high: float
    epochs: float
    """Times that the target phase reads the source."""


class FitMixtureResult(BaseModel, frozen=True, extra="forbid"):
    """The mixture, its predicted gain over the natural one in mean bits per byte, and the errors of the law.

    The figures are those of proxies; only a run of the target shows how far they hold.
    """

    shares: dict[str, SourceShare]
    gain: float
    """Mean over laws that the proxies allow; `gain_low` and `gain_high` are a 90 % interval."""
    gain_low: float
    gain_high: float
    errors: dict[str, float]
    """Domain -> root mean square error of its law for proxies that the fit leaves out."""
    spread: dict[str, float]
    """Domain -> standard deviation over the proxies. A law whose error is near this value predicts nothing."""


def check_swarm(config: FitMixtureConfig) -> None:
    """Raise ValueError where mixtures and evaluations do not match, or are fewer than a law needs."""
    if len(config.mixtures) != len(config.evaluations):
        raise ValueError(
            f"mixtures has {len(config.mixtures)} entries and evaluations {len(config.evaluations)}; give one of each "
            "for every proxy."
        )
    sources = set(config.caches)
    for index, mixture in enumerate(config.mixtures):
        if set(mixture) != sources:
            differ = ", ".join(sorted(set(mixture) ^ sources))
            raise ValueError(f"mixtures[{index}] and caches differ in {differ}; each mixture has every source.")
    if len(config.mixtures) < len(sources) + 2:
        raise ValueError(
            f"mixtures has {len(config.mixtures)} entries, too few for a law of {len(sources)} sources; train at least "
            f"{len(sources) + 2} proxies."
        )
    for field in ("min_shares", "max_shares"):
        if unknown := sorted(set(getattr(config, field)) - sources):
            raise ValueError(
                f"{field}: {', '.join(unknown)} is no source; the sources are {', '.join(sorted(sources))}."
            )


@step(policy="tracked", packages=("numpy",), check=check_swarm)
def fit_mixture(config: FitMixtureConfig, context: StepContext) -> FitMixtureResult:
    """Fit a law for each domain, and search the best mixture within the limits and the range of the proxies."""
    import numpy as np

    from runtime.data.mixing.offline_search import Posterior, search

    names = sorted(config.caches)
    domains = sorted(config.evaluations[0].result.hot)
    shares = np.array([[mixture[name] for name in names] for mixture in config.mixtures])
    shares /= shares.sum(axis=1, keepdims=True)
    losses = np.array([[each.result.hot[domain] for domain in domains] for each in config.evaluations])
    tokens = np.array([config.caches[name].result.num_train_tokens for name in names], np.float64)
    most = config.max_epochs * tokens / config.target_tokens
    # Outside of the range of the proxies the law is a guess.
    lower = np.maximum(shares.min(axis=0), [config.min_shares.get(name, 0.0) for name in names])
    upper = np.minimum(np.minimum(shares.max(axis=0), most), [config.max_shares.get(name, 1.0) for name in names])
    _check_bounds(config, names, lower.tolist(), upper.tolist())
    posterior = Posterior(shares, losses)
    found = search(posterior.draw(config.num_draws, seed=config.seed), shares[0], lower, upper)
    context.log.info("predicted gain over the natural mixture: %.4f bits per byte", found.gain)
    low, high = found.share_intervals
    rows = zip(shares[0], found.shares, low, high, found.shares * config.target_tokens / tokens, strict=True)
    fields = ("natural", "share", "low", "high", "epochs")
    return FitMixtureResult(
        shares={
            name: SourceShare(**dict(zip(fields, map(float, row), strict=True)))
            for name, row in zip(names, rows, strict=True)
        },
        gain=found.gain,
        gain_low=found.gain_interval[0],
        gain_high=found.gain_interval[1],
        errors=dict(zip(domains, posterior.errors().tolist(), strict=True)),
        spread=dict(zip(domains, losses.std(axis=0).tolist(), strict=True)),
    )


def _check_bounds(config: FitMixtureConfig, names: list[str], lower: list[float], upper: list[float]) -> None:
    for name, least, most in zip(names, lower, upper, strict=True):
        if least > most:
            raise ValueError(
                f"{name}: its share must be at least {least:.4f} and at most {most:.4f} (proxies, min_shares, "
                f"max_shares and max_epochs {config.max_epochs:g} together); widen one of these."
            )
    if math.fsum(lower) > LARGEST_SUM or math.fsum(upper) < SMALLEST_SUM:
        raise ValueError(
            f"no mixture is within all limits: the smallest shares sum to {math.fsum(lower):.4f}, and the largest to "
            f"{math.fsum(upper):.4f}. Raise max_epochs or max_shares, lower min_shares, or shorten the phase."
        )
