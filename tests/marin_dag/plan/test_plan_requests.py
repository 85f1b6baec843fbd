"""Requests of a plan: a few listings, and none for each finished step."""

import functools
from pathlib import Path
from typing import Any

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.store.local import LocalStore
from tests.marin_dag.run.test_driver import run
from tests.marin_dag.toy_steps import Text, WriteConfig, write


def versioned(name: str) -> Step[Text]:
    return write(name, WriteConfig(text=name), policy="versioned", version="1")


def test_a_plan_of_finished_steps_reads_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    steps = [versioned(f"step{number}") for number in range(5)]
    assert run(str(tmp_path), steps)[0] == 0
    store, asked = LocalStore(str(tmp_path)), []

    def counted(name: str, operation: Any, *arguments: Any) -> Any:
        asked.append((name, arguments[0]))
        return operation(*arguments)

    for name in ("list", "read", "exists"):
        monkeypatch.setattr(store, name, functools.partial(counted, name, getattr(store, name)))
    assert {planned.verdict for planned in make_plan(Graph(steps), store).steps} == {Verdict.DONE}
    assert sorted(asked) == [("list", "codes"), ("list", "commits"), ("list", "marks")]


def test_after_two_attempts_with_different_code_the_record_decides(tmp_path: Path):
    item = versioned("step")
    assert run(str(tmp_path), [item])[0] == 0
    store = LocalStore(str(tmp_path))
    assert Records(store).codes() == {item.key: item.identity["code"]["fingerprint"]}
    store.create(f"codes/{item.key}/{'ab' * 32}", b"")
    assert Records(store).codes() == {}
    assert [planned.verdict for planned in make_plan(Graph([item]), store).steps] == [Verdict.DONE]
