"""Offline search: the law and the optimum of a swarm whose truth is known."""

import numpy as np
import pytest

from runtime.data.mixing.offline_search import MixtureLaw, Posterior, best_mixture, draw_mixtures, projected, search

NATURAL = {"code": 0.2, "math": 0.05, "web": 0.75}
TRUTH = MixtureLaw(np.array([0.8, 0.5]), np.zeros(2), np.array([[-1.0, 0.1], [0.2, -2.0], [0.0, -0.3]]))
LOWER, UPPER = np.full(3, 0.01), np.full(3, 0.9)


def swarm(count: int, seed: int, noise: float = 0.0, truth: MixtureLaw = TRUTH) -> tuple[np.ndarray, np.ndarray]:
    drawn = draw_mixtures(NATURAL, count, seed=seed)
    shares = np.array([[mixture[name] for name in sorted(NATURAL)] for mixture in drawn])
    losses = truth.predicted(shares)
    return shares, losses + noise * np.random.default_rng(seed + 1).normal(size=losses.shape)


def drawn_laws(count: int, seed: int, noise: float = 0.0) -> MixtureLaw:
    return Posterior(*swarm(count, seed, noise)).draw(100, seed=0)


def test_draws_begin_with_the_natural_mixture_and_spread_around_it():
    drawn = draw_mixtures({name: 10 * share for name, share in NATURAL.items()}, 400, seed=0)
    assert drawn[0] == pytest.approx(NATURAL)
    assert drawn == draw_mixtures(NATURAL, 400, seed=0)
    assert drawn[1:4] != draw_mixtures(NATURAL, 4, seed=1)[1:]
    shares = np.array([list(mixture.values()) for mixture in drawn])
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(shares.mean(axis=0), list(NATURAL.values()), atol=0.03)
    assert shares.min() > 0 and shares[:, 1].max() > 0.2


def test_the_laws_predict_mixtures_that_they_have_not_seen_and_spread_as_far_as_they_err():
    shares, losses = swarm(50, seed=7)
    for noise in (0.002, 0.05):
        predicted = drawn_laws(24, 0, noise).predicted(shares[:, None])
        error, spread = np.abs(predicted.mean(axis=1) - losses), predicted.std(axis=1)
        assert 0.3 < np.median(error) / np.median(spread) < 1.5
        assert (error < noise * 2).mean() > 0.9
        left_out = Posterior(*swarm(24, 0, noise)).errors()
        assert (left_out > 0.7 * noise).all(), "the errors are those of proxies that were left out"
        assert (left_out < 2 * noise).all()


@pytest.mark.filterwarnings("error")
def test_a_domain_with_one_loss_in_all_proxies_is_predicted_and_changes_nothing_in_the_others():
    shares, losses = swarm(24, 0, 0.02)
    alone = Posterior(shares, losses[:, :1])
    beside = Posterior(shares, np.stack([losses[:, 0], np.full(24, 2.1)], axis=1))
    assert beside.errors() == pytest.approx([alone.errors()[0], 0.0], abs=1e-9)
    for one, other in zip(search_of(alone, shares), search_of(beside, shares), strict=True):
        assert other == pytest.approx(one / 2, abs=0.002), "the mean is that of two domains, and one never gains"
    np.testing.assert_allclose(beside.draw(100, seed=0).predicted(shares[:, None])[..., 1], 2.1, atol=1e-6)
    every = Posterior(shares, np.full((24, 2), 2.1))
    assert search_of(every, shares) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)


def search_of(posterior: Posterior, shares: np.ndarray) -> tuple[float, float, float]:
    """Return the gain of the best mixture and its interval."""
    found = search(posterior.draw(400, seed=0), shares[0], LOWER, UPPER)
    return found.gain, *found.gain_interval


def test_the_found_mixture_is_the_best_of_a_grid_within_the_bounds():
    upper = np.array([0.5, 0.3, 0.9])
    found = best_mixture(TRUTH, LOWER, upper)
    first, second = np.meshgrid(np.linspace(0.01, 0.5, 99), np.linspace(0.01, 0.3, 59), indexing="ij")
    grid = np.stack([first, second, 1 - first - second], axis=-1).reshape(-1, 3)
    grid = grid[(grid >= LOWER).all(axis=1) & (grid <= upper).all(axis=1)]
    assert found.sum() == pytest.approx(1) and (found >= LOWER - 1e-9).all() and (found <= upper + 1e-9).all()
    assert TRUTH.mean(found) == pytest.approx(TRUTH.mean(grid).min(), abs=1e-5)
    searched = search(drawn_laws(40, 0, 0.002), swarm(1, 0)[0][0], LOWER, upper)
    assert TRUTH.mean(searched.shares) == pytest.approx(TRUTH.mean(found), abs=0.002)


def test_draws_of_a_law_have_the_best_mixture_that_each_would_have_alone():
    laws = drawn_laws(12, 0, 0.05)
    together = best_mixture(laws, LOWER, UPPER)
    for index in (0, 50, 99):
        alone = MixtureLaw(laws.floors[index], laws.offsets[index], laws.slopes[index])
        assert alone.mean(together[index]) == pytest.approx(alone.mean(best_mixture(alone, LOWER, UPPER)), abs=1e-5)


def test_90_percent_intervals_of_the_gain_hold_it_in_about_90_percent_of_swarms_of_any_truth():
    """Each world has its own law. In a third no mixture matters, and in half of all the domains share their noise."""
    held, errors, widths = 0, [], []
    for seed in range(45):
        rng = np.random.default_rng(1_000 + seed)
        slopes = rng.normal(0, (0.0, 0.2, 0.8)[seed % 3], size=(3, 2))
        world = MixtureLaw(rng.uniform(0.5, 1, size=2), rng.normal(-0.2, 0.2, size=2), slopes)
        shares, losses = swarm(12, seed, 0.02, world)
        if seed % 2:
            losses = world.predicted(shares) + (losses - world.predicted(shares))[:, :1]
        laws = Posterior(shares, losses).draw(60, seed=0)
        found = search(laws, shares[0], shares.min(axis=0), shares.max(axis=0))
        gain = world.mean(shares[0]) - world.mean(found.shares)
        held += found.gain_interval[0] <= gain <= found.gain_interval[1]
        errors.append(found.gain - gain)
        widths.append(found.gain_interval[1] - found.gain_interval[0])
    assert held >= 38
    assert abs(np.mean(errors)) < 0.3 * np.std(errors), "the choice of the best does not make it look better"
    assert np.median(widths) < 0.05


def test_intervals_of_shares_hold_the_best_ones_and_widen_with_noise():
    best = best_mixture(TRUTH, LOWER, UPPER)
    widths = []
    for noise in (0.005, 0.05):
        low, high = search(drawn_laws(30, 1, noise), swarm(1, 0)[0][0], LOWER, UPPER).share_intervals
        assert ((low <= best + 0.02) & (best - 0.02 <= high)).all()
        widths.append((high - low).sum())
    assert widths[1] > 3 * widths[0]


def test_a_projection_is_the_nearest_point_within_the_bounds():
    rng = np.random.default_rng(0)
    lower, upper = np.array([0.1, 0.0, 0.2, 0.0]), np.array([0.3, 0.5, 0.9, 0.05])
    for point in rng.normal(size=(20, 4)):
        found = projected(point, lower, upper)
        assert found.sum() == pytest.approx(1) and (lower <= found).all() and (found <= upper).all()
        others = [projected(found + rng.normal(size=4) / 5, lower, upper) for _ in range(10)]
        nearest = min(np.sum((other - point) ** 2) for other in others)
        assert np.sum((found - point) ** 2) <= nearest + 1e-9
