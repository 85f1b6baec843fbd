"""Table: what a plan looks like, on a terminal and in a pipe."""

from pathlib import Path

import pytest

from marin_dag.graph import Graph
from marin_dag.plan import Plan, make_plan
from marin_dag.reasons import Failed, render
from marin_dag.store import open_store
from marin_dag.table import render_plan
from tests.marin_dag import toy
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def plan(tmp_path: Path, bench: Workbench) -> Plan:
    bench()
    bench.edit("rate: float = 0.5", "rate: float = 0.75")
    long_text = ("--set", f"text/web.text={'word ' * 40}")
    return bench.plan(*long_text)


def test_on_a_terminal_long_reasons_are_wrapped_and_nothing_is_cut(plan: Plan) -> None:
    table = render_plan(plan, width=80)
    assert max(len(line) for line in table.split("\n\n")[0].splitlines()) <= 80
    assert "…" not in table
    assert table.split("Because of:")[0].count("word") >= 40


def test_what_was_changed_is_said_once_with_all_that_follows(plan: Plan) -> None:
    table = render_plan(plan)
    block = table.split("Because of:\n")[1].split("\n\n")[0].splitlines()
    assert len(block) == 2
    assert block[0].startswith("  text/web: text: 'web' -> 'word word") and block[0].endswith("(5 steps)")
    assert block[1] == "  first: rate: 0.5 -> 0.75  (3 steps)"


def test_a_plan_without_changes_names_no_cause(tmp_path: Path) -> None:
    fresh = make_plan(Graph(toy.build(toy.Namespace())), open_store(str(tmp_path)))
    assert "Because of:" not in render_plan(fresh)


@pytest.mark.parametrize(("attempts", "tries"), [(1, ""), (3, "3 attempts; ")])
def test_a_failure_is_told_by_what_failed_and_not_by_its_cure(attempts: int, tries: str) -> None:
    error = "\n3 of 10 files could not be fetched:\n  a.warc: 404\nFetch them anew, or raise max_missing_share."
    assert render(Failed(attempts, "20260101", error, "x.log")) == f"{tries}3 of 10 files could not be fetched:"
