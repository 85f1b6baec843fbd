"""Score doubts: one block of scores of different weights is said, and what is a chance or one model is not."""

import dataclasses

from runtime.report.contents import Export, Score
from runtime.report.page import render
from runtime.report.score_doubts import doubts
from tests.runtime.report.example_run import example_report


def export(name, digest):
    return Export(name, name, "hot", digest, "outputs")


def block(name, values=(0.3, 0.5), num_items=300):
    return [
        Score(name, task, 0, metric, value, 0.01, 0.25, num_items)
        for task, value in zip(("piqa", "arc_easy"), values, strict=True)
        for metric in ("acc", "acc_norm")
    ]


EXPORTS = [export("starling", "aaaa"), export("phoenix", "bbbb"), export("twin", "aaaa")]


def test_one_block_of_scores_under_the_names_of_two_models_is_said():
    """The public table that has one block of results under both cooldowns."""
    (said,) = doubts([*block("starling"), *block("phoenix")], EXPORTS)
    assert said.startswith("starling and phoenix are different weights and have every score in common, on 600 items")


def test_two_names_of_one_model_few_items_or_one_score_that_differs_are_no_doubt():
    assert doubts([*block("starling"), *block("twin")], EXPORTS) == []
    assert doubts([*block("starling", num_items=250), *block("phoenix", num_items=250)], EXPORTS) == []
    assert doubts([*block("starling"), *block("phoenix", (0.3, 0.51))], EXPORTS) == []
    assert doubts([*block("starling"), *block("phoenix")[:2]], EXPORTS) == []


def test_a_warning_of_an_evaluation_stands_with_its_model_and_task():
    warned = dataclasses.replace(block("starling")[0], warning="labels are read wrongly")
    assert doubts([warned], EXPORTS) == ["starling, piqa, 0-shot, acc: labels are read wrongly"]


def test_it_stands_on_the_page():
    report = example_report()
    first, second = report.exports[:2]
    again = [dataclasses.replace(score, export=second.name) for score in report.scores if score.export == first.name]
    scores = (*(score for score in report.scores if score.export != second.name), *again)
    scores = tuple(dataclasses.replace(score, num_items=1_000) for score in scores)
    assert "have every score in common" not in render(report)
    assert f"{first.name} and {second.name} are different weights" in render(dataclasses.replace(report, scores=scores))
