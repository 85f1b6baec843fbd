"""Score doubts name scores that can hardly be true, and stay silent on chance, equal models and expected results."""

import dataclasses

import pytest

from runtime.report.contents import Evaluation, Export
from runtime.report.page import render
from runtime.report.score_doubts import doubts, noise
from tests.catalogue import check_message
from tests.runtime.report.example_run import example_report, score


def export(name, digest):
    return Export(name, name, "hot", digest, "outputs")


def block(name, values=(0.3, 0.5), num_items=300):
    return [
        score(name, task, 0, metric, value, 0.01, 0.25, num_items)
        for task, value in zip(("piqa", "arc_easy"), values, strict=True)
        for metric in ("acc", "acc_norm")
    ]


def doubts_of(scores, exports, evaluations=()):
    return doubts(
        dataclasses.replace(example_report(), scores=tuple(scores), exports=tuple(exports), evaluations=evaluations)
    )


EXPORTS = [
    export("starling", "aaaa"),
    export("phoenix", "bbbb"),
    Export("twin", "starling", "averaged", "aaaa", "outputs"),
]


def test_one_block_of_scores_under_two_models_is_a_doubt():
    """The public table that has one block of results under both cooldowns."""
    (output,) = doubts_of([*block("starling"), *block("phoenix")], EXPORTS)
    check_message(output)


def test_two_names_of_one_model_few_items_or_one_score_that_differs_are_no_doubt():
    assert doubts_of([*block("starling"), *block("twin")], EXPORTS) == []
    assert doubts_of([*block("starling", num_items=250), *block("phoenix", num_items=250)], EXPORTS) == []
    assert doubts_of([*block("starling"), *block("phoenix", (0.3, 0.51))], EXPORTS) == []
    assert doubts_of([*block("starling"), *block("phoenix")[:2]], EXPORTS) == []


def table(name, values, stderr=0.01):
    return [score(name, task, 0, "acc", value, stderr, 0.25, 1_000) for task, value in values.items()]


BEFORE = {"bbh": 0.57, "piqa": 0.70, "arc_easy": 0.60, "boolq": 0.65, "copa": 0.80}
RISEN = {task: value + 0.02 for task, value in BEFORE.items()}


@pytest.mark.parametrize(("value", "stderr"), [(0.0035, 0.002), (0.0, 0.0)])
def test_one_task_that_falls_while_the_others_rise_is_a_doubt(value, stderr):
    """The public table whose BBH is 0.570, and 0.0035 a phase later."""
    fallen = [*table("starling", {**RISEN, "bbh": value})[1:], *table("starling", {"bbh": value}, stderr)]
    (output,) = doubts_of([*table("phoenix", BEFORE), *fallen], EXPORTS[:2])
    check_message(output)


def test_a_model_that_is_worse_and_a_fall_that_may_be_chance_are_no_doubt():
    worse = {task: value - 0.2 for task, value in BEFORE.items()}
    assert doubts_of([*table("phoenix", BEFORE), *table("starling", worse)], EXPORTS[:2]) == []
    little = {**RISEN, "bbh": 0.50}
    assert doubts_of([*table("phoenix", BEFORE), *table("starling", little)], EXPORTS[:2]) == []
    three = {**RISEN, "bbh": 0.0}
    three = {task: three[task] for task in ("bbh", "piqa", "copa")}
    assert doubts_of([*table("phoenix", BEFORE), *table("starling", three)], EXPORTS[:2]) == []
    assert doubts_of([*table("starling", BEFORE), *table("phoenix", {**RISEN, "bbh": 0.0})], EXPORTS[:2]) == []


def test_a_warning_of_an_evaluation_stands_with_its_model_and_task():
    warned = dataclasses.replace(block("starling")[0], warning="labels are read wrongly")
    assert doubts_of([warned], EXPORTS) == ["starling, piqa, 0-shot, acc: labels are read wrongly"]


def test_it_stands_on_the_page():
    report = example_report()
    first, second = report.exports[:2]
    again = [dataclasses.replace(score, export=second.name) for score in report.scores if score.export == first.name]
    scores = (*(score for score in report.scores if score.export != second.name), *again)
    scores = tuple(dataclasses.replace(score, num_items=1_000) for score in scores)
    assert doubts(report) == []
    assert f"{first.name} and {second.name} are different weights" in render(dataclasses.replace(report, scores=scores))


def test_an_average_far_from_the_weights_is_a_doubt_and_one_near_them_is_not():
    """The public run whose average went the wrong way round for three weeks."""

    def evaluated(averaged):
        return (Evaluation("jellyfish", 9, {"web": 0.80, "code": 0.60}, {"averaged": averaged}),)

    (output,) = doubts_of([], [], evaluated({"web": 3.1, "code": 2.9}))
    assert output.startswith("jellyfish, average 'averaged': 3.000 bits per byte, where the weights have 0.700")
    assert doubts_of([], [], evaluated({"web": 0.82, "code": 0.61})) == []


def test_a_winner_inside_the_noise_is_named_and_a_clear_one_or_a_tie_is_not():
    first, second = block("starling", (0.32, 0.6)), block("phoenix", (0.30, 0.5))
    found = noise([*first, *second])
    assert "in 1 of 2 tasks: piqa, 0-shot, acc_norm (0.020 above phoenix; 0.040 is" in found
    assert found in render(dataclasses.replace(example_report(), scores=(*first, *second), exports=tuple(EXPORTS)))
    assert noise(first) == noise([*second, *block("twin", (0.3, 0.6))]) == ""
    unknown = [dataclasses.replace(score, stderr=None) for score in first]
    assert noise([*unknown, *second]) == ""
