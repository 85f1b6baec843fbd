"""Intervals cover the truth about as often as they say, and a seed repeats them."""

import math

import numpy as np

from runtime.scaling.bootstrap import Bootstrap, bootstrap
from runtime.scaling.law import Fit
from runtime.scaling.replicates import replicates_in, replicates_table
from tests.runtime.scaling.test_law import REPLICATION, ladder

TARGET = (1e10, 1e11)
"""Five times the largest rung in both directions."""


def bootstrapped(seed: int, num_replicates: int = 100) -> Bootstrap:
    return bootstrap(Fit(ladder(0.005, seed)), num_replicates=num_replicates, confidence=0.95, seed=seed)


def test_the_interval_of_a_larger_run_covers_the_truth_for_at_least_8_of_10_ladders():
    intervals = [bootstrapped(seed) for seed in range(10)]
    covering = [each.interval(lambda law: law.loss(*TARGET)) for each in intervals]
    assert sum(low <= REPLICATION.loss(*TARGET) <= high for _, low, high in covering) >= 8
    # An interval that covers all losses would prove nothing.
    assert np.median([(high - low) / value for value, low, high in covering]) < 0.05
    exponents = [each.interval(lambda law: law.alpha) for each in intervals]
    assert sum(low <= REPLICATION.alpha <= high for _, low, high in exponents) >= 8


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
