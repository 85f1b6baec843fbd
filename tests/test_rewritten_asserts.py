"""What is written down of a test file is what pytest takes for it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.rewritten_asserts import write_rewritten


def test_pytest_takes_what_was_written_for_this_source_and_for_no_other(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text("def test_one():\n    assert 1 + 1 == 3\n")

    def pytest() -> tuple[str, str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--debug=trace.txt", file.name]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return ran.stdout, (tmp_path / "trace.txt").read_text()

    write_rewritten(file)
    said, trace = pytest()
    assert f"found cached rewritten pyc for {file}" in trace
    assert "assert (1 + 1) == 3" in said
    file.write_text("def test_one():\n    assert 1 + 1 == 4\n")
    said, trace = pytest()
    assert f"rewriting {file!r}" in trace
    write_rewritten(file)
    said, trace = pytest()
    assert f"found cached rewritten pyc for {file}" in trace
    assert "assert (1 + 1) == 4" in said
