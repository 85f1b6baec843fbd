"""A small pipeline that commands are tried on."""

from pathlib import Path

import pytest

from tests.marin_dag.cli.test_main import Toy


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Toy:
    return Toy(tmp_path / "runs", capsys)
