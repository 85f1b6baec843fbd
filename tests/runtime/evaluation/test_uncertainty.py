"""Uncertainty: the formulas agree with resampling, and with lm-eval's own where items are independent."""

import math

import numpy as np
import pytest
from lm_eval.api.metrics import mean_stderr

from runtime.evaluation.item_scores import item_scores, read_item_scores, to_json_lines
from runtime.evaluation.uncertainty import (
    Difference,
    is_noise,
    mean_difference,
    minimum_detectable_difference,
    paired_difference,
    standard_error,
    student_share,
)


def correlated(seed: int, num_groups: int = 80, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return right and wrong answers about passages, some of them hard, and the passage of each answer."""
    chance = np.random.default_rng(seed)
    groups = np.repeat(np.arange(num_groups), size)
    return (chance.random(len(groups)) < chance.beta(0.5, 0.5, num_groups)[groups]).astype(float), groups


def resampled(values: np.ndarray, groups: np.ndarray, number: int = 4_000) -> float:
    """Return the standard error by a bootstrap that draws whole groups."""
    parts = [values[groups == group] for group in np.unique(groups)]
    sums, counts = np.array([part.sum() for part in parts]), np.array([len(part) for part in parts])
    drawn = np.random.default_rng(0).integers(0, len(parts), (number, len(parts)))
    return float(np.std(sums[drawn].sum(1) / counts[drawn].sum(1)))


@pytest.mark.parametrize("seed", range(3))
def test_items_of_one_passage_widen_the_error_as_resampling_whole_passages_does(seed: int) -> None:
    values, groups = correlated(seed)
    clustered = standard_error([*values], [*groups])
    alone = standard_error([*values])
    assert clustered == pytest.approx(resampled(values, groups), rel=0.06)
    assert alone == pytest.approx(mean_stderr([*values]))
    assert clustered is not None and alone is not None and clustered > 1.5 * alone


def test_fewer_than_two_groups_have_no_standard_error() -> None:
    assert standard_error([1.0]) is None and standard_error([1.0, 0.0], ["a", "a"]) is None
    assert standard_error([1.0, 1.0]) == 0.0
    assert is_noise(0.5, None) and not is_noise(0.5, 0.0)
    for degrees, quantile in ((1, 12.7062), (2, 4.30265), (3, 3.18245), (10, 2.22814), (1001, 1.96233)):
        assert student_share(quantile, degrees) == pytest.approx(0.95, abs=1e-6), "of a table of Student's t"
        assert is_noise(quantile - 0.001, 1.0, degrees) and not is_noise(quantile + 0.001, 1.0, degrees)


def test_two_models_on_the_same_items_differ_by_less_than_their_errors_say() -> None:
    values, groups = correlated(0)
    better = values.copy()
    better[np.flatnonzero(values == 0)[:12]] = 1.0
    found = paired_difference([*better], [*values], [*groups])
    assert found.value == pytest.approx(12 / 400) and found.num_items == 400
    assert found.stderr == pytest.approx(resampled(better - values, groups), rel=0.1)
    errors = [standard_error([*each], [*groups]) or math.inf for each in (better, values)]
    assert (found.stderr or 0) < 0.5 * math.hypot(*errors)
    assert paired_difference([*values], [*values]).is_noise, "no difference at all"


def test_a_difference_of_the_minimum_is_found_in_four_of_five_samples() -> None:
    error = 0.01
    measured = np.random.default_rng(0).normal(minimum_detectable_difference(error), error, 20_000)
    assert np.mean([not is_noise(value, error) for value in measured]) == pytest.approx(0.8, abs=0.01)
    assert np.mean([not is_noise(value, error) for value in measured * 0 + 0.0]) == 0.0
    at_zero = np.random.default_rng(1).normal(0.0, error, 20_000)
    assert np.mean([not is_noise(value, error) for value in at_zero]) == pytest.approx(0.05, abs=0.005)


def test_the_mean_over_tasks_has_the_error_of_independent_items_but_for_one_task_at_two_numbers_of_shots() -> None:
    one, other = Difference(0.02, 0.03, 100), Difference(0.06, 0.04, 50)
    both = mean_difference([("piqa", one), ("sciq", other)])
    assert both == Difference(pytest.approx(0.04), pytest.approx(0.05 / 2), 150)
    assert mean_difference([("piqa", one), ("piqa", other)]).stderr == pytest.approx(0.07 / 2)


def test_items_of_a_passage_are_a_group_and_two_models_are_compared_only_on_the_same_items() -> None:
    docs = [
        {"passage": "a"},
        {"passage": "b"},
        {"passage": "a"},
        {"question": "of its own"},
        {"question": "of its own"},
    ]
    samples = [("boolq_0shot", {"doc": doc, "doc_id": n, "acc": n % 2}) for n, doc in enumerate(docs)]
    found = item_scores("boolq", 0, "acc", "acc", samples)
    assert found.groups == (0, 1, 0, 2, 3) and found.values == (0.0, 1.0, 0.0, 1.0, 0.0)
    other = item_scores("boolq", 0, "acc", "acc", samples[:4])
    assert read_item_scores(to_json_lines([found, other])) == [found, other]
    assert found.minus(other) is None
    difference = found.minus(found)
    assert difference is not None and difference.value == 0.0
