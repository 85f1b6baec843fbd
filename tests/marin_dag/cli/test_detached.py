"""stop: what it refuses before it asks the cluster."""

from types import SimpleNamespace

import pytest

from marin_dag.cli import detached
from tests.catalogue import check_message
from tests.marin_dag.workbench import Workbench


def test_a_run_that_has_ended_is_not_stopped(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(name="bench-1", has_ended=True, status="SUCCEEDED")
    monkeypatch.setattr(detached, "_runs", lambda session: SimpleNamespace(newest=lambda name: job))
    code, text = bench("stop")
    assert code == 1
    check_message(text)
