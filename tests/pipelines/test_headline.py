"""The lines that a run ends with: quality of the final phase, unreadable documents, time."""

import dataclasses
from types import SimpleNamespace

from marin_dag.graph.graph import Graph
from pipelines.headline import headline, quality
from runtime.evaluation.task_score import TaskScore
from runtime.optim.ema import Ema
from steps.documents import DocumentsResult
from steps.ema_eval import AverageResult, EmaEvalResult
from steps.lm_eval import LmEvalResult
from tests.catalogue import check_message


def finished(seconds, **results):
    named = {name.replace("__", "/"): result for name, result in results.items()}
    return SimpleNamespace(seconds=seconds, steps=tuple(named), result=named.get, graph=Graph([]))


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


def test_the_final_phase_is_shown_with_its_ema_weights_and_scores():
    scores = (
        score("piqa", "acc", 0.6, 0.5),
        score("arc_easy", "acc", 0.2, 0.25),
        score("arc_easy", "acc_norm", 0.3, 0.25),
    )
    scored = LmEvalResult(scores=scores, samples="", weights="averaged", step=9, consumed_tokens=9)
    check_message("\n".join(quality("starling", evaluation(("averaged", 1.25), ("slow", 1.125)), scored)))


def test_scores_below_chance_warn_only_with_many_items():
    laptop = [score("openbookqa", "acc", 0.1, 0.25), score("gsm8k_cot", "exact_match", 0.0, None)]
    many = [dataclasses.replace(score, num_items=1_319) for score in laptop]
    named = {"samples": "", "weights": "hot", "step": 9, "consumed_tokens": 9}
    assert len(list(quality("a", None, LmEvalResult(scores=tuple(laptop), **named)))) == 1
    warned = list(quality("a", None, LmEvalResult(scores=tuple(many), **named)))
    assert len(warned) == 3
    check_message("\n".join(warned))


def test_without_an_average_the_weights_are_shown():
    check_message("\n".join(quality("starling", evaluation(), None)))


def test_unreadable_documents_are_listed_with_their_counts_and_the_time_comes_last():
    run = finished(7.0, extract__notes=documents(not_UTF_8=2, empty=9), extract__code=documents(empty=1))
    check_message("\n".join(headline(run)))


def test_a_run_without_results_has_no_headline():
    assert list(headline(finished(None))) == []
