"""Contents: what cannot be shown is refused at construction, with its field and the cure."""

import math

import numpy as np
import pytest

from runtime.report.contents import Curve, Evaluation, Phase, leading
from tests.catalogue import expect_error
from tests.runtime.report.example_run import score


def curve(**changes):
    rows = 4
    columns = {
        "step": np.arange(1, rows + 1),
        "consumed_tokens": 2048 * np.arange(1, rows + 1),
        "loss": np.linspace(4, 3, rows),
        "learning_rate": np.full(rows, 1e-3),
        "global_batch_size": np.full(rows, 8),
    }
    return Curve(**{**columns, **changes})


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_refused_with_its_row_and_step(wrong):
    with expect_error(ValueError):
        curve(loss=np.array([4.0, 3.5, wrong, 3.0]))


def test_a_final_loss_that_is_no_number_is_refused_with_its_phase():
    with expect_error(ValueError):
        Phase("kestrel", None, True, 0, 4, 0, 8192, math.nan, (), curve())


def test_bits_per_byte_that_are_no_number_are_refused_with_phase_and_domain():
    with expect_error(ValueError):
        Evaluation("ocelot", 10, {"code": 1.0}, {"averaged": {"code": math.nan}})


def test_a_score_that_is_no_number_is_refused_with_export_and_task():
    with expect_error(ValueError):
        score("starling", "piqa", 0, "acc", math.nan, None, 0.5)
    with expect_error(ValueError):
        score("starling", "piqa", 0, "acc", 0.5, math.nan, 0.5)


def test_the_best_weights_are_the_first_average_or_the_hot_ones():
    averages = {"slow": {"code": 0.8}, "averaged": {"code": 0.9}}
    assert Evaluation("ocelot", 10, {"code": 1.0}, averages).best == {"code": 0.8}
    assert Evaluation("kestrel", 10, {"code": 1.0}, {}).best == {"code": 1.0}


def test_a_panel_shows_the_accuracy_that_is_corrected_for_length():
    scores = [
        score("a", "arc", 0, "acc", 0.3, None, 0.25),
        score("a", "arc", 0, "acc_norm", 0.35, None, 0.25),
        score("a", "lambada", 0, "perplexity", 900.0, None, None),
        score("a", "lambada", 0, "acc", 0.1, None, 0.0),
    ]
    assert [(found.task, found.metric) for found in leading(scores)] == [("arc", "acc_norm"), ("lambada", "acc")]
