"""Retries: how many attempts without progress are a crash loop."""

from pathlib import Path

import pytest

from marin_dag.ledger.records import Failure
from marin_dag.run.frontier import Frontier, Node
from marin_dag.run.retries import Retries
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
def test_an_unknown_progress_mark_is_neither_progress_nor_the_end_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: str, states: list[str]
):
    node = Node(write("a", WriteConfig(text="a")))
    retries = Retries(open_store(str(tmp_path)), Frontier([node]), Recorder(), back_off_seconds=0.0)
    found = []
    for attempt, mark in enumerate(marks):
        known = "" if mark == "?" else mark
        monkeypatch.setattr(retries, "_progress_mark", lambda step, known=known: known)
        failure = Failure(
            key=node.step.key, name="a", attempt=f"{attempt}", error_type="ConnectionResetError", error="reset",
            log_path="outputs/a/x.log", is_transient=True, finished="",
        )  # fmt: skip
        retries.retry_or_fail(node, failure, is_stopping=False)
        found.append(node.state)
    assert found == states
