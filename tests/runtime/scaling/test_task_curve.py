"""The curve of a task's accuracy over the loss is found, stays in bounds, and needs scores of several losses."""

import numpy as np
import pytest

from runtime.scaling.curves import TaskCurve
from runtime.scaling.task_curve import ScoredModel, TaskCurveError, fit_task_curve
from tests.catalogue import expect_error

TRUTH = TaskCurve(chance=0.25, height=0.6, middle=0.9, width=0.1)


def test_the_curve_behind_exact_accuracies_is_found():
    models = [ScoredModel(loss, TRUTH.accuracy(loss)) for loss in np.linspace(0.6, 1.3, 9)]
    found = fit_task_curve(models, chance=0.25)
    assert [found.accuracy(loss) for loss in (0.55, 0.9, 1.4)] == pytest.approx(
        [TRUTH.accuracy(loss) for loss in (0.55, 0.9, 1.4)], abs=2e-3
    )


def test_weights_choose_the_models_that_count():
    other = TaskCurve(chance=0.25, height=0.3, middle=1.1, width=0.05)
    losses = np.linspace(0.6, 1.3, 9)
    models = [ScoredModel(loss, curve.accuracy(loss)) for curve in (TRUTH, other) for loss in losses]
    found = fit_task_curve(models, chance=0.25, weights=np.repeat([1.0, 0.0], len(losses)))
    assert found.accuracy(0.8) == pytest.approx(TRUTH.accuracy(0.8), abs=2e-3)


def test_accuracies_at_or_below_chance_give_a_flat_curve():
    found = fit_task_curve([ScoredModel(loss, 0.24) for loss in (0.8, 0.9, 1.0, 1.1)], chance=0.25)
    assert found.accuracy(0.5) == pytest.approx(0.25, abs=1e-6)


def test_no_curve_promises_more_than_every_item():
    steep = [ScoredModel(loss, accuracy) for loss, accuracy in ((1.2, 0.26), (1.1, 0.3), (1.0, 0.5), (0.9, 0.95))]
    assert fit_task_curve(steep, chance=0.25).accuracy(0.1) <= 1.0


@pytest.mark.parametrize("losses", [(0.9, 1.0, 1.1), (1.0, 1.0, 1.0, 1.0)], ids=["three models", "one loss"])
def test_too_few_scores_are_refused(losses):
    with expect_error(TaskCurveError):
        fit_task_curve([ScoredModel(loss, 0.5) for loss in losses], chance=0.25)
