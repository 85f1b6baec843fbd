"""Intervals cover the truth about as often as they say, and a seed repeats them."""

import dataclasses
import math

import numpy as np
import pytest

from runtime.scaling.bootstrap import Bootstrap, Replicate, bootstrap
from runtime.scaling.fit import Fit
from runtime.scaling.replicates import replicates_in, replicates_table
from tests.runtime.scaling.test_fit import REPLICATION, ladder

TARGET = (1e10, 1.5e11)
"""Five times the largest rung in both directions."""


def bootstrapped(seed: int, num_replicates: int = 60, shared: float = 0.0) -> Bootstrap:
    return bootstrap(Fit(ladder(0.005, seed, shared=shared)), num_replicates=num_replicates, confidence=0.95, seed=seed)


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_the_interval_of_a_larger_run_covers_the_truth_also_where_the_lengths_of_a_size_share_their_noise(shared):
    intervals = [bootstrapped(seed, shared=shared) for seed in range(10)]
    covering = [each.interval(lambda law: law.loss(*TARGET)) for each in intervals]
    assert sum(each.low <= REPLICATION.loss(*TARGET) <= each.high for each in covering) >= 9
    # An interval that covers all losses would prove nothing.
    assert np.median([(each.high - each.low) / each.value for each in covering]) < 0.12
    exponents = [each.interval(lambda law: law.alpha) for each in intervals]
    assert sum(each.low <= REPLICATION.alpha <= each.high for each in exponents) >= 8


def test_an_optimum_is_withheld_once_an_interval_of_an_exponent_may_end_at_a_bound_of_the_fit():
    law, at_bound = Replicate(REPLICATION, 0.0), Replicate(dataclasses.replace(REPLICATION, alpha=3.0), 0.0)
    for num_at_bound, determines in ((0, True), (1, True), (2, False)):
        replicates = (law,) * (40 - num_at_bound) + (at_bound,) * num_at_bound
        found = Bootstrap(REPLICATION, replicates, confidence=0.95)
        assert found.share_at_bounds == num_at_bound / 40
        assert found.determines_optimum == determines


def test_the_interval_of_one_run_also_holds_its_noise():
    found = bootstrapped(0)
    of_law, of_run = found.interval(lambda law: law.loss(1e9, 1e10)), found.prediction(1e9, 1e10)
    assert of_law.value == of_run.value
    assert of_run.high - of_run.low > 1.2 * (of_law.high - of_law.low)
    assert math.isclose(of_run.high - of_run.low, 4 * 0.005 * of_run.value, rel_tol=0.6)


def test_more_replicates_change_no_earlier_one():
    few, more = bootstrapped(1, num_replicates=5), bootstrapped(1, num_replicates=8)
    assert more.replicates[:5] == few.replicates
    assert bootstrapped(2, num_replicates=5).replicates != few.replicates


def test_a_table_of_replicates_gives_them_back():
    replicates = bootstrapped(3, num_replicates=5).replicates
    assert replicates_in(replicates_table(replicates, {})) == replicates
