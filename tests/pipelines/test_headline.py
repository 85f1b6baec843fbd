"""The last lines of a run: the figures of the page, what was left out, how long it took; nothing that is not there."""

import dataclasses
from types import SimpleNamespace

from pipelines.headline import headline
from runtime.evaluation.task_score import TaskScore
from runtime.optim.ema import Ema
from steps.documents import DocumentsResult
from steps.ema_eval import AverageResult, EmaEvalResult
from steps.lm_eval import LmEvalResult


def finished(seconds, **results):
    named = {name.replace("__", "/"): result for name, result in results.items()}
    return SimpleNamespace(seconds=seconds, steps=tuple(named), result=named.get)


def evaluation(*averages):
    return EmaEvalResult(
        step=9, consumed_tokens=1_234_567, hot={"code": 2.0, "web": 1.0}, hot_mean=1.5,
        averages=tuple(AverageResult(average=Ema(0.9, name), by_domain={}, mean=mean) for name, mean in averages),
        num_bytes={}, num_tokens={},
    )  # fmt: skip


def score(task, metric, value, chance):
    return TaskScore(task, 0, metric, value, 0.01, 60, chance, "none", 0, 0, None)


def documents(**dropped):
    named = {reason.replace("_", " "): count for reason, count in dropped.items()}
    return DocumentsResult(shards=(), num_documents=9, num_bytes=9, dropped=named)


def test_a_finished_run_ends_with_its_figures_and_how_long_it_took():
    scores = (
        score("piqa", "acc", 0.6, 0.5),
        score("arc_easy", "acc", 0.2, 0.25),
        score("arc_easy", "acc_norm", 0.3, 0.25),
    )
    scored = LmEvalResult(scores=scores, samples="", weights="averaged", step=9, consumed_tokens=9)
    run = finished(
        312.4,
        ema_eval__deeper_starling=evaluation(("averaged", 1.25), ("slow", 1.125)),
        lm_eval__deeper_starling=scored,
    )
    assert list(headline(run)) == [
        "deeper_starling: 1.250 bits per byte (averaged weights, mean of 2 held-out domains) after 1,234,567 tokens",
        "lm-eval: mean accuracy 0.450 over 2 tasks; guessing gives 0.375",
        "done in 5 min 12 s",
    ]


def test_a_score_that_no_model_would_have_is_said_and_those_of_a_laptop_are_not():
    """Of a laptop's 60 items a guess is below half of chance too often to speak of."""
    laptop = [score("openbookqa", "acc", 0.1, 0.25), score("gsm8k_cot", "exact_match", 0.0, None)]
    many = [dataclasses.replace(score, num_items=1_319) for score in laptop]
    named = {"samples": "", "weights": "hot", "step": 9, "consumed_tokens": 9}
    quiet = headline(finished(None, lm_eval__deeper_starling=LmEvalResult(scores=tuple(laptop), **named)))
    assert [line.split(":")[0] for line in quiet] == ["lm-eval"]
    _, half, nothing = headline(finished(None, lm_eval__deeper_starling=LmEvalResult(scores=tuple(many), **named)))
    assert half.startswith("lm-eval, openbookqa, 0-shot, acc: 0.100 is below half of chance (0.250) on 1319 items")
    assert nothing.startswith("lm-eval, gsm8k_cot, 0-shot, exact_match: 0.0000 is next to nothing on 1319 items")


def test_without_an_average_the_hot_weights_are_named_and_without_a_run_no_time():
    (line,) = headline(finished(None, ema_eval__deeper_starling=evaluation()))
    assert line.startswith("deeper_starling: 1.500 bits per byte (hot weights")


def test_what_could_not_be_read_of_a_file_is_said_with_its_counts():
    run = finished(7.0, extract__notes=documents(not_UTF_8=2, empty=9), extract__code=documents(empty=1))
    assert list(headline(run)) == ["extract/notes left out what it could not read (not UTF 8: 2)", "done in 7 s"]


def test_a_part_of_the_graph_ends_with_what_it_has():
    assert list(headline(finished(None))) == []
