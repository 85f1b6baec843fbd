"""Fit: the scaling law of a ladder's rungs.

The fit is approach 3 of arXiv:2203.15556: the Huber loss between the logarithms of predicted and measured losses, from
a grid of starts. The replication (arXiv:2404.10102) found that the authors' optimizer had stopped early. Here all
starts, or all replicates of a bootstrap, are minimized together by Gauss-Newton steps, until none improves.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from runtime.scaling.law import MAX_EXPONENT, MIN_EXPONENT, MIN_RUNGS, MIN_VALUES, Rung, ScalingLaw

HUBER_DELTA = 1e-3
START_EXPONENTS = (0.2, 0.5, 1.0)
START_SHARES = (0.05, 0.2, 0.5, 0.8)
"""Shares of the loss at a start, for the terms of N and of D."""
MIN_LOG_SHARE = -12.0
"""Least logarithm of E as a share of the median loss: E may be 0, and its logarithm must stay finite."""
NUM_COEFFICIENTS = 5
MIN_LENGTH_SPREAD = 0.2
"""Least standard deviation of log lengths around their trend over sizes; three lengths at factors of 1.3 have it."""
MAX_ITERATIONS = 1_000
TOLERANCE = 1e-6
"""Largest relative improvement, over `PATIENCE` iterations, of a solution that counts as converged."""
PATIENCE = 10


class ScalingLawError(ValueError):
    """Rungs that determine no law; the message names them and what to add."""


class Fit:
    """The law of some rungs, and laws of the same rungs with other weights."""

    def __init__(self, rungs: Sequence[Rung]) -> None:
        check_rungs(rungs)
        self.rungs = tuple(rungs)
        table = np.log(np.array(rungs, dtype=np.float64))
        # In units of the geometric means, so that the factors do not depend on the exponents.
        self._center = table[:, :2].mean(axis=0)
        self._log_n, self._log_d = (table[:, :2] - self._center).T
        self._log_loss = table[:, 2]
        self._middle = float(np.median(self._log_loss))
        starts = self._starts()
        found, values = self._minimize(
            starts, np.ones((len(starts), len(rungs))), np.tile(self._log_loss, (len(starts), 1))
        )
        self._solution = found[np.argmin(values)]
        self.law = self._law(self._solution)
        self._check_exponents()

    def weighted(
        self, weights: Float[np.ndarray, "replicates rungs"], shifts: Float[np.ndarray, "replicates rungs"]
    ) -> list[ScalingLaw]:
        """Return a law for each row of weights and of shifts of the log losses, from the solution without both."""
        found, _ = self._minimize(np.tile(self._solution, (len(weights), 1)), weights, self._log_loss + shifts)
        return [self._law(x) for x in found]

    def _starts(self) -> Float[np.ndarray, "starts 5"]:
        """Return a grid over exponents and shares of the three terms; a row is (ln E, ln A, ln B, alpha, beta)."""
        shares = [pair for pair in itertools.product(START_SHARES, repeat=2) if sum(pair) < 1]
        rows = [
            (math.log(1 - of_n - of_d), math.log(of_n), math.log(of_d), alpha, beta)
            for of_n, of_d in shares
            for alpha, beta in itertools.product(START_EXPONENTS, repeat=2)
        ]
        return np.array(rows) + np.array([self._middle] * 3 + [0.0] * 2)

    def _minimize(
        self,
        x: Float[np.ndarray, "batch 5"],
        weights: Float[np.ndarray, "batch rungs"],
        log_loss: Float[np.ndarray, "batch rungs"],
    ) -> tuple[Float[np.ndarray, "batch 5"], Float[np.ndarray, " batch"]]:
        """Return the minima from the starts `x` and their values, by Levenberg-Marquardt steps with Huber's weights."""
        found, values = np.array(x), np.empty(len(x))
        rows = np.arange(len(x))  # those that still improve; a row's end does not depend on the other rows
        residual, jacobian = self._residuals(x, log_loss)
        value = _huber(residual, weights)
        damping = np.full(len(x), 1e-2)
        history = [value]
        diagonal = np.arange(NUM_COEFFICIENTS)
        for _ in range(MAX_ITERATIONS):
            scaled = weights / np.maximum(np.abs(residual), HUBER_DELTA)
            gradient = np.einsum("bri,br->bi", jacobian, scaled * residual)
            curvature = np.einsum("bri,br,brj->bij", jacobian, scaled, jacobian)
            curvature[:, diagonal, diagonal] *= 1 + damping[:, None]
            curvature[:, diagonal, diagonal] += 1e-12
            step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
            moved = self._bounded(x - step)
            moved_residual, moved_jacobian = self._residuals(moved, log_loss)
            moved_value = _huber(moved_residual, weights)
            better = moved_value < value
            x, residual = (np.where(better[:, None], new, old) for new, old in ((moved, x), (moved_residual, residual)))
            jacobian = np.where(better[:, None, None], moved_jacobian, jacobian)
            value = np.where(better, moved_value, value)
            damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-9, 1e9)
            found[rows], values[rows] = x, value
            history = [*history[-PATIENCE:], value]
            if len(history) > PATIENCE:
                improves = history[0] - value > TOLERANCE * value
                if not improves.any():
                    break
                if not improves.all():
                    rows, x, weights, log_loss, residual, jacobian, value, damping, *history = (
                        each[improves]
                        for each in (rows, x, weights, log_loss, residual, jacobian, value, damping, *history)
                    )
        return found, values

    def _residuals(
        self, x: Float[np.ndarray, "batch 5"], log_loss: Float[np.ndarray, "batch rungs"]
    ) -> tuple[Float[np.ndarray, "batch rungs"], Float[np.ndarray, "batch rungs 5"]]:
        """Return ln(predicted) - ln(measured) of each rung, and its derivatives by x."""
        limit = np.broadcast_to(x[:, :1], (len(x), len(self.rungs)))
        terms = np.stack([limit, x[:, 1:2] - x[:, 3:4] * self._log_n, x[:, 2:3] - x[:, 4:] * self._log_d], axis=2)
        highest = terms.max(axis=2, keepdims=True)
        parts = np.exp(terms - highest)
        total = parts.sum(axis=2, keepdims=True)
        shares = parts / total
        slopes = [-shares[:, :, 1] * self._log_n, -shares[:, :, 2] * self._log_d]
        residual = (highest + np.log(total))[:, :, 0] - log_loss
        return residual, np.concatenate([shares, np.stack(slopes, axis=2)], axis=2)

    def _bounded(self, x: Float[np.ndarray, "batch 5"]) -> Float[np.ndarray, "batch 5"]:
        least = [self._middle + MIN_LOG_SHARE] * 3 + [MIN_EXPONENT] * 2
        return np.clip(x, least, [np.inf] * 3 + [MAX_EXPONENT] * 2)

    def _law(self, x: Float[np.ndarray, "5"]) -> ScalingLaw:
        log_a, log_b = x[1:3] + x[3:] * self._center
        return ScalingLaw(math.exp(x[0]), math.exp(log_a), math.exp(log_b), float(x[3]), float(x[4]))

    def _check_exponents(self) -> None:
        for name, exponent, axis in (("alpha", self.law.alpha, "sizes"), ("beta", self.law.beta, "lengths")):
            if not MIN_EXPONENT < exponent < MAX_EXPONENT:
                raise ScalingLawError(
                    f"{name} of the fitted law is {exponent:g}, the bound of the fit: the loss of these "
                    f"{len(self.rungs)} rungs does not fall with larger {axis} as a power law does. Add {axis} that "
                    "lie further apart, or look for a run that went wrong."
                )


def _huber(residual: Float[np.ndarray, "batch rungs"], weights: Float[np.ndarray, "batch rungs"]) -> np.ndarray:
    size = np.abs(residual)
    is_small = size <= HUBER_DELTA
    values = np.where(is_small, 0.5 * residual**2 / HUBER_DELTA, size - 0.5 * HUBER_DELTA)
    found: np.ndarray = (weights * values).sum(axis=1)
    return found


def check_rungs(rungs: Sequence[Rung]) -> None:
    """Raise ScalingLawError where the rungs are too few, too alike, or not positive finite numbers."""
    for rung in rungs:
        if not all(math.isfinite(each) and each > 0 for each in rung):
            raise ScalingLawError(f"{rung} has a number that is not finite and above 0; leave this rung out.")
    if len(rungs) < MIN_RUNGS:
        raise ScalingLawError(
            f"{len(rungs)} rungs for the {NUM_COEFFICIENTS} coefficients of a law; use at least {MIN_RUNGS}."
        )
    for axis, values in (("size", {rung.num_parameters for rung in rungs}), ("length", {r.num_tokens for r in rungs})):
        if len(values) < MIN_VALUES:
            raise ScalingLawError(
                f"{len(rungs)} rungs with {len(values)} {axis}s; use at least {MIN_VALUES} {axis}s, since a limit, a "
                "factor and an exponent pass through any two."
            )
    log_n, log_d = np.log([rung[:2] for rung in rungs]).T
    centered = log_n - log_n.mean()
    spread = float(np.std(log_d - np.polyval(np.polyfit(centered, log_d, 2), centered)))
    if spread < MIN_LENGTH_SPREAD:
        raise ScalingLawError(
            f"the lengths of these {len(rungs)} rungs follow from their sizes (they differ by a factor of "
            f"{math.exp(spread):.2f} at equal size), so the fit cannot separate the terms of N and of D. Train sizes "
            "to several lengths, such as 5, 10 and 20 tokens a parameter."
        )
