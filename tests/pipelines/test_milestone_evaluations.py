"""Evaluations of milestones have the results that the recipe has at the end of its phases, and make nothing stale."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu, Tpu
from marin_dag.graph.step import Step
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.milestone_evaluations import evaluate_every, is_of_training, milestone_of, with_milestones
from pipelines.run_pages import write_run_pages
from pipelines.scales import LAPTOP
from pipelines.scores_command import BITS_PER_BYTE, read_points
from runtime.evaluation.task_score import TaskScore
from runtime.optim.ema import Ema
from runtime.report.page import render
from steps.ema_eval import AverageResult, EmaEvalResult, ema_eval
from steps.hf_export import hf_export
from steps.lm_eval import LmEvalResult, lm_eval
from steps.report import ReportResult
from tests.catalogue import expect_error
from tests.pipelines.committed import commit
from tests.pipelines.test_run_pages import session_of
from tests.runtime.report.example_run import example_report

ON = "cpu:3"


def laptop(arguments: argparse.Namespace) -> list[Step]:
    return tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(with_milestones(laptop, argparse.Namespace(evaluate_every=100, evaluate_on=ON)))


def results(graph: Graph) -> list[Step]:
    return [step for step in graph.steps if step.background is None and step.kind in (ema_eval, hf_export, lm_eval)]


def test_every_milestone_has_the_results_of_the_end_of_a_phase(graph: Graph) -> None:
    end = LAPTOP.boundaries.kestrel
    for kind in ("ema_eval", "hf_export", "lm_eval"):
        made = [step for step in graph.steps if step.name.startswith(f"{kind}/kestrel-step-")]
        assert {step.name.rpartition("-")[2] for step in made} == {str(at) for at in range(100, end + 1, 100)}
        assert {(milestone_of(step).typed, step.background.rank) for step in made if step.background} == {
            (f"kestrel@{at}", at) for at in range(100, end + 1, 100)
        }
        assert {step.resources for step in made} == {Cpu(3)}
    assert graph.step("hf_export/kestrel-step-100").config.weights == "hot", "kestrel keeps no averages"
    assert graph.step("hf_export/jellyfish-step-900").config.weights == "averaged"


def test_evaluate_every_changes_no_digest_and_publishes_the_milestones(graph: Graph, tmp_path: Path) -> None:
    plain = Graph(laptop(argparse.Namespace()))
    assert {step.name: step.digest for step in plain.steps}.items() <= {s.name: s.digest for s in graph.steps}.items()
    wanted = make_plan(graph, open_store(str(tmp_path))).wanted_milestones
    assert {*range(100, LAPTOP.boundaries.kestrel, 100)} <= wanted[graph.step("kestrel").digest]


def test_a_later_phase_publishes_its_own_milestones(graph: Graph) -> None:
    for step in graph.steps:
        if step.background is not None and is_of_training(step):
            phase = milestone_of(step)
            assert phase.step.config.begin_step < (phase.at or 0) <= phase.step.config.until_step


def test_evaluations_do_not_take_the_machines_of_their_phase(graph: Graph) -> None:
    slow = graph.step("kestrel").on(Tpu("v6e-8"))
    evaluation = tootsie.recipe.evaluate([slow], caches={})
    with expect_error(UserError):
        evaluate_every(evaluation, 100)
    moved = evaluate_every(evaluation, 100, resources=Cpu(1))
    assert {(step.resources, step.config.replica_parallel) for step in moved} == {(Cpu(1), 1)}
    with expect_error(UserError):
        evaluate_every(evaluation, 0)
    with expect_error(UserError):
        evaluate_every([], 100)


def test_gc_of_the_recipe_without_the_option_keeps_the_evaluations_of_milestones(graph: Graph, tmp_path: Path) -> None:
    store, plain = open_store(str(tmp_path)), Graph(laptop(argparse.Namespace()))
    commit(store, graph.step("ema_eval/kestrel-step-100"), ReportResult(page=""))
    kept = Roots(frozenset(step.key for step in plain.steps), frozenset(plain.names))
    assert Collector(store, kept, older_than_seconds=0).find() == []
    of_others = Roots(frozenset(), frozenset(graph.names))
    assert [found.kind for found in Collector(store, of_others, older_than_seconds=0).find()] == ["output"]


def test_the_scores_so_far_are_read_by_tokens_and_drawn_in_the_report(graph: Graph, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert read_points(graph, store) == []
    average = AverageResult(average=Ema(0.9), by_domain={"web": 1.25}, mean=1.25)
    for at, value in ((200, 1.5), (100, 2.0)):
        averages = (average,) if at == 200 else ()
        measured = {"hot": {"web": value}, "hot_mean": value, "averages": averages}
        counts = {"num_bytes": {"web": 9}, "num_tokens": {"web": 3}}
        step = graph.step(f"ema_eval/kestrel-step-{at}")
        commit(store, step, EmaEvalResult(step=at, consumed_tokens=at * 10, **measured, **counts))
    facts = {"fewshot_from": "none", "num_truncated": 0, "num_unparsed": 0, "warning": None}
    scores = [
        TaskScore("piqa", 0, metric, value, 0.05, 100, 0.5, **facts)
        for metric, value in (("acc", 0.6), ("acc_norm", 0.7))
    ]
    scored = LmEvalResult(scores=tuple(scores), samples="", weights="hot", step=100, consumed_tokens=1000)
    commit(store, graph.step("lm_eval/kestrel-step-100"), scored)
    points = read_points(graph, store)
    assert [(p.measure, p.weights, p.step, p.value, p.stderr) for p in points] == [
        (BITS_PER_BYTE, "hot", 100, 2.0, None),
        (BITS_PER_BYTE, "averaged", 200, 1.25, None),
        (BITS_PER_BYTE, "hot", 200, 1.5, None),
        ("piqa, 0-shot, acc_norm", "hot", 100, 0.7, 0.05),
    ]
    session: Any = session_of(store)
    commit(store, graph.step("report"), ReportResult(page="report.html"))
    output = Records(store).get(graph.step("report").key).output_path
    store.write(f"{output}/report.html", render(example_report()).encode())
    (line,) = write_run_pages(session, make_plan(graph, store))
    page = Path(line.partition(": ")[2]).read_text()
    assert r"0.7000 \u00b1 0.0500" in page and "kestrel after step 200: 1.5000" in page
