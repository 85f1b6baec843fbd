"""Offline search: the law and the optimum of a swarm whose truth is known."""

import numpy as np
import pytest

from runtime.data.mixing.offline_search import best_mixture, draw_mixtures, fit_law, projected, search

NATURAL = {"code": 0.2, "math": 0.05, "web": 0.75}
SLOPES = np.array([[-1.0, 0.1], [0.2, -2.0], [0.0, -0.3]])
LOWER, UPPER = np.full(3, 0.01), np.full(3, 0.9)


def truth(shares: np.ndarray) -> np.ndarray:
    return np.array([0.8, 0.5]) + np.exp(shares @ SLOPES)


def swarm(count: int, seed: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    drawn = draw_mixtures(NATURAL, count, seed=seed)
    shares = np.array([[mixture[name] for name in sorted(NATURAL)] for mixture in drawn])
    return shares, truth(shares) + noise * np.random.default_rng(seed + 1).normal(size=(count, 2))


def test_draws_begin_with_the_natural_mixture_and_spread_around_it():
    drawn = draw_mixtures({name: 10 * share for name, share in NATURAL.items()}, 400, seed=0)
    assert drawn[0] == pytest.approx(NATURAL)
    assert drawn == draw_mixtures(NATURAL, 400, seed=0)
    assert drawn[1:4] != draw_mixtures(NATURAL, 4, seed=1)[1:]
    shares = np.array([list(mixture.values()) for mixture in drawn])
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(shares.mean(axis=0), list(NATURAL.values()), atol=0.03)
    assert shares.min() > 0 and shares[:, 1].max() > 0.2


def test_the_law_predicts_mixtures_that_it_has_not_seen():
    law = fit_law(*swarm(24, seed=0))
    shares, losses = swarm(50, seed=7)
    assert np.abs(law.predicted(shares) - losses).max() < 0.05 * np.ptp(losses, axis=0).min()
    assert (law.errors < 0.02).all()
    noisy = fit_law(*swarm(24, seed=0, noise=0.05))
    assert (noisy.errors > 0.03).all(), "the errors are those of proxies that were left out"


def test_the_found_mixture_is_the_best_of_a_grid_within_the_bounds():
    law = fit_law(*swarm(40, seed=0))
    upper = np.array([0.5, 0.3, 0.9])
    found = best_mixture(law, LOWER, upper)
    first, second = np.meshgrid(np.linspace(0.01, 0.5, 99), np.linspace(0.01, 0.3, 59), indexing="ij")
    grid = np.stack([first, second, 1 - first - second], axis=-1).reshape(-1, 3)
    grid = grid[(grid >= LOWER).all(axis=1) & (grid <= upper).all(axis=1)]
    assert found.sum() == pytest.approx(1) and (found >= LOWER - 1e-9).all() and (found <= upper + 1e-9).all()
    assert law.predicted(found).mean() <= law.predicted(grid).mean(axis=1).min() + 1e-6
    assert truth(found).mean() == pytest.approx(truth(grid).mean(axis=1).min(), abs=0.01)


def test_intervals_hold_the_truth_and_widen_with_noise():
    best = best_mixture(fit_law(*swarm(400, seed=3)), LOWER, UPPER)
    widths = []
    for noise in (0.005, 0.05):
        shares, losses = swarm(30, seed=1, noise=noise)
        law = fit_law(shares, losses)
        found = search(law, shares, losses, LOWER, UPPER, num_bootstraps=20, seed=0)
        low, high = found.share_intervals
        assert ((low <= best + 0.1) & (best - 0.1 <= high)).all()
        gain = truth(shares[0]).mean() - truth(found.shares).mean()
        assert found.gain_interval[0] - 0.02 <= gain <= found.gain_interval[1] + 0.02
        widths.append(found.gain_interval[1] - found.gain_interval[0])
    assert widths[1] > 3 * widths[0]


def test_where_no_mixture_matters_the_interval_of_the_gain_holds_0_and_the_gain_is_nearer_to_it():
    held, predicted, corrected = 0, 0.0, 0.0
    for seed in range(8):
        shares, losses = swarm(12, seed)
        losses = 2 + 0.01 * np.random.default_rng(100 + seed).normal(size=losses.shape)
        law = fit_law(shares, losses)
        found = search(law, shares, losses, shares.min(axis=0), shares.max(axis=0), num_bootstraps=20, seed=0)
        held += found.gain_interval[0] <= 0 <= found.gain_interval[1]
        predicted += law.predicted(shares[0]).mean() - law.predicted(found.shares).mean()
        corrected += found.gain
    assert held >= 7
    assert predicted > 8 * 0.002 and abs(corrected) < 0.6 * predicted


def test_a_projection_is_the_nearest_point_within_the_bounds():
    rng = np.random.default_rng(0)
    lower, upper = np.array([0.1, 0.0, 0.2, 0.0]), np.array([0.3, 0.5, 0.9, 0.05])
    for point in rng.normal(size=(20, 4)):
        found = projected(point, lower, upper)
        assert found.sum() == pytest.approx(1) and (lower <= found).all() and (found <= upper).all()
        others = [projected(found + rng.normal(size=4) / 5, lower, upper) for _ in range(10)]
        nearest = min(np.sum((other - point) ** 2) for other in others)
        assert np.sum((found - point) ** 2) <= nearest + 1e-9
