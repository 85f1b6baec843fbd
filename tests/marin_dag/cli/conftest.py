"""Fixtures of the command line's tests: a small pipeline, under the same program name on every machine."""

from pathlib import Path

import pytest

from marin_dag.cli import session
from tests.marin_dag.cli.test_main import Toy


@pytest.fixture(autouse=True)
def program_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "program_words", lambda: ["python", "toy.py"])


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Toy:
    return Toy(tmp_path / "runs", capsys)
