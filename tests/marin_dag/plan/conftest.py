"""Fixture of the planning tests: the same program name on every machine."""

import pytest

from marin_dag.cli import session


@pytest.fixture(autouse=True)
def program_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "program_words", lambda: ["python", "toy.py"])
