"""Setbacks: how many attempts that got no further are a crash loop."""

from pathlib import Path

import pytest
from marin_dag.run.setbacks import Setbacks

from marin_dag.ledger.records import Failure
from marin_dag.run.frontier import Frontier
from marin_dag.run.node import Node
from marin_dag.store.prefix import open_store
from tests.marin_dag.run.test_driver import Recorder
from tests.marin_dag.toy_steps import WriteConfig, write


@pytest.mark.parametrize(
    ("marks", "states"),
    [
        ("aaa", ["waiting", "waiting", "failed"]),
        ("aba", ["waiting", "waiting", "waiting"]),
        ("a?b", ["waiting", "waiting", "waiting"]),
        ("a?a", ["waiting", "waiting", "failed"]),
    ],
)
def test_a_store_that_does_not_say_what_an_attempt_left_is_neither_progress_nor_the_end_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: str, states: list[str]
):
    node = Node(write("a", WriteConfig(text="a")))
    setbacks = Setbacks(open_store(str(tmp_path)), Frontier([node]), Recorder(), back_off_seconds=0.0)
    found = []
    for attempt, mark in enumerate(marks):
        said = "" if mark == "?" else mark
        monkeypatch.setattr(setbacks, "_progress_mark", lambda step, said=said: said)
        failure = Failure(
            key=node.step.key, name="a", attempt=f"{attempt}", error_type="ConnectionResetError", error="reset",
            log_path="outputs/a/x.log", is_transient=True, finished="",
        )  # fmt: skip
        setbacks.retry_or_fail(node, failure, is_stopping=False)
        found.append(node.state)
    assert found == states
