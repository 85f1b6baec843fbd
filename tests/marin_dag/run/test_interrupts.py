"""Interrupts: handlers are restored after a run, and an early interrupt prints no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.errors import UserError
from marin_dag.run.interrupts import SIGNALS, signals_handled
from tests.catalogue import expect_error


def test_a_run_does_not_start_if_it_cannot_restore_a_handler(monkeypatch: pytest.MonkeyPatch):
    known = signal.getsignal
    before = [known(number) for number in SIGNALS]
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else known(number))
    with (
        expect_error(UserError),
        signals_handled(lambda number, frame: None),
    ):
        pass
    assert [known(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        ("KeyboardInterrupt", 130, "interrupted\n"),
        ("__import__('pydantic_core').SchemaError('building it: KeyboardInterrupt: ')", 130, "interrupted\n"),
        ("OSError('KeyboardInterrupt')", 1, None),
    ],
)
@pytest.mark.parametrize("pipeline", ["online_mixing", "web_corpus"])
def test_an_interrupt_while_a_pipeline_is_imported_is_one_line(
    tmp_path: Path, pipeline: str, error: str, code: int, shown: str | None
):
    (tmp_path / "pydantic.py").write_text(f"raise {error}")  # every heavy module imports it
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, f"pipelines/{pipeline}.py", "--dry-run"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{root}"},
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr == shown if shown else ended.stderr.startswith("Traceback")
