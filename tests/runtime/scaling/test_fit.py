"""The fit finds the law behind a ladder's losses, and refuses ladders that show none."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from runtime.scaling.fit import HUBER_DELTA, Fit, ScalingLawError
from runtime.scaling.law import Rung, ScalingLaw
from tests.catalogue import expect_error

# The values of the replication, arXiv:2404.10102, and their published standard errors.
REPLICATION = ScalingLaw(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
STANDARD_ERRORS = ScalingLaw(0.03, 124.58, 1293.23, 0.02, 0.02)
SIZES, LENGTHS = np.geomspace(5e7, 2e9, 5), np.geomspace(1e9, 3e10, 4)


def ladder(noise: float = 0.0, seed: int = 0, *, shared: float = 0.0, truth: ScalingLaw = REPLICATION) -> list[Rung]:
    """Return rungs on a law; the share `shared` of the variance of their noise is one draw for all rungs of a size."""
    key = np.random.default_rng(seed)
    of_rung = key.standard_normal((len(SIZES), len(LENGTHS)))
    of_size = key.standard_normal((len(SIZES), 1))
    drawn = noise * (math.sqrt(shared) * of_size + math.sqrt(1 - shared) * of_rung)
    return [
        Rung(size, length, truth.loss(size, length) * math.exp(drawn[i, j]))
        for i, size in enumerate(SIZES)
        for j, length in enumerate(LENGTHS)
    ]


def test_the_law_behind_exact_losses_is_found():
    found = Fit(ladder()).law
    assert vars(found) == pytest.approx(vars(REPLICATION), rel=1e-6)


def test_240_random_runs_give_their_law_within_the_replications_standard_errors():
    """Losses are drawn from the replication's law; the table that its authors extracted is not read."""
    key = np.random.default_rng(7)
    sizes = np.exp(key.uniform(math.log(57e6), math.log(16e9), 240))
    budgets = np.exp(key.uniform(math.log(1.4e18), math.log(1.3e22), 240))
    noise = np.exp(0.005 * key.standard_normal(240))
    rungs = [
        Rung(size, flops / 6 / size, REPLICATION.loss(size, flops / 6 / size) * each)
        for size, flops, each in zip(sizes, budgets, noise, strict=True)
    ]
    found = Fit(rungs).law
    for name, error in vars(STANDARD_ERRORS).items():
        assert abs(getattr(found, name) - getattr(REPLICATION, name)) < error, name


def test_one_run_that_went_wrong_hardly_moves_the_law():
    rungs = ladder()
    rungs[7] = rungs[7]._replace(loss=rungs[7].loss * 1.3)
    found = Fit(rungs).law
    assert found.loss(1e10, 1e11) == pytest.approx(REPLICATION.loss(1e10, 1e11), rel=1e-3)


def test_the_minimum_is_not_above_that_of_l_bfgs():
    rungs = ladder(0.004, seed=3)
    log_n, log_d, log_loss = np.log(np.array(rungs)).T

    def huber(x: np.ndarray) -> float:
        predicted = np.exp(x[0]) + np.exp(x[1] - x[3] * log_n) + np.exp(x[2] - x[4] * log_d)
        size = np.abs(np.log(predicted) - log_loss) / HUBER_DELTA
        return float(np.where(size <= 1, 0.5 * size**2, size - 0.5).sum())

    def point(law: ScalingLaw) -> np.ndarray:
        factors = (law.irreducible, law.parameter_factor, law.token_factor)
        return np.array([*map(math.log, factors), law.alpha, law.beta])

    found = huber(point(Fit(rungs).law))
    assert found < huber(point(REPLICATION))
    assert found <= minimize(huber, point(REPLICATION), method="L-BFGS-B").fun * (1 + 1e-6)


def test_the_optimum_has_the_least_loss_of_its_budget():
    best = REPLICATION.optimum(1e21)
    assert 6 * best.num_parameters * best.num_tokens == pytest.approx(1e21)
    sizes = best.num_parameters * np.geomspace(0.5, 2, 41)
    losses = [REPLICATION.loss(size, 1e21 / 6 / size) for size in sizes]
    assert np.argmin(losses) == 20 and min(losses) == pytest.approx(best.loss)


@pytest.mark.parametrize(
    "rungs",
    [
        ladder()[:5],
        ladder()[:8],
        [Rung(size, 20 * size, REPLICATION.loss(size, 20 * size)) for size in np.geomspace(5e7, 2e9, 8)],
        [*ladder(), Rung(1e8, 1e9, math.nan)],
        [rung._replace(loss=2 + 0.1 * math.log(rung.num_parameters)) for rung in ladder()],
    ],
    ids=[
        "as many as coefficients",
        "two sizes",
        "each size at 20 tokens a parameter",
        "not finite",
        "larger models are worse",
    ],
)
def test_rungs_that_determine_no_law_are_refused(rungs):
    with expect_error(ScalingLawError):
        Fit(rungs)


@pytest.mark.parametrize(("alpha", "is_at_bound"), [(0.001, True), (0.35, False), (2.99, True)])
def test_an_exponent_at_a_bound_of_the_fit_is_known(alpha, is_at_bound):
    assert dataclasses.replace(REPLICATION, alpha=alpha).is_at_bound == is_at_bound
    assert dataclasses.replace(REPLICATION, beta=alpha).is_at_bound == is_at_bound
