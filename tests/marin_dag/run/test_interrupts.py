"""Interrupts: handlers are restored after a run, and an early interrupt prints no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.run.interrupts import SIGNALS, DriverHandler, signals_handled


def test_a_signal_handler_set_before_python_is_not_restored(monkeypatch: pytest.MonkeyPatch):
    known = signal.signal
    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(signal, "signal", lambda number, to: (known(number, to), None)[number == signal.SIGTERM])
    with signals_handled(lambda number, frame: None):
        pass
    monkeypatch.undo()
    assert isinstance(signal.signal(signal.SIGTERM, before[1]), DriverHandler)
    assert [signal.getsignal(number) for number in SIGNALS] == before


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
