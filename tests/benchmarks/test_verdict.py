"""A benchmark whose claim does not hold fails, and so does `make benchmarks`, after all of them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.verdict import conclude
from tests.catalogue import expect_error

ROOT = Path(__file__).resolve().parents[2]


def test_a_claim_that_does_not_hold_ends_with_one_and_its_line_all_the_same(capsys):
    with expect_error(SystemExit):
        conclude({"claim": "faster than light", "holds": False})
    assert json.loads(capsys.readouterr().out) == {"claim": "faster than light", "holds": False}


@pytest.mark.parametrize("holds", [True, None])
def test_a_claim_that_holds_and_a_file_without_a_claim_exit_with_0(holds, capsys):
    conclude({"claim": "slower than light", "holds": holds})
    assert json.loads(capsys.readouterr().out)["holds"] is holds


def test_every_benchmark_with_a_claim_ends_with_its_verdict():
    found = {path.name: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    claiming = {name for name, text in found.items() if text.startswith('"""Claim') or '"holds":' in text}
    concluding = {name for name, text in found.items() if re.search(r"^    conclude\(", text, re.MULTILINE)}
    # host_overhead.py makes the line of checkpoint_overhead.py too.
    assert concluding == claiming and len(concluding) >= 14


def test_all_benchmarks_are_run_and_those_that_did_not_hold_are_named_in_the_end(tmp_path):
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    for folder in ("benchmarks", ".venv/bin", ".venv-peers"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    for name, status in (("a_slow", 1), ("b_fast", 0), ("c_broken", 2), ("train_on_gpu", 1)):
        lines = ("def main():", f"    conclude({status})", "", "def conclude(status):", "    raise SystemExit(status)")
        (tmp_path / "benchmarks" / f"{name}.py").write_text("\n".join([*lines, "", "main()", ""]))
    (tmp_path / "benchmarks" / "of_a_peer.py").write_text("def main():\n    raise SystemExit(3)\n")
    ready = (".venv/test-ready", ".venv-peers/ready")
    for path in ready:
        (tmp_path / path).touch()
    # As from a shell: a make that runs the tests makes its own makes verbose.
    shell = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", *(word for path in ready for word in ("-o", path)), "benchmarks"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=shell)
    assert done.returncode == 2, done.stdout + done.stderr  # of make itself
    *ran, last = done.stdout.strip().splitlines()
    assert ran == [f"== benchmarks/{name}.py" for name in ("a_slow", "b_fast", "c_broken")]
    assert last == "did not hold, or could not be measured: benchmarks/a_slow.py benchmarks/c_broken.py"
    for name in ("a_slow", "c_broken"):
        (tmp_path / "benchmarks" / f"{name}.py").unlink()
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, env=shell).returncode == 0
