"""The matrix of models and machines: it fails where anything does not compile, does not fit, or has a fault."""

import dataclasses
import json
import subprocess
import sys

import pytest

from benchmarks import compile_matrix as matrix
from benchmarks.compile_kernel import SCATTER_SHAPE
from runtime.cost.collectives import Collective
from runtime.cost.request import Compiled, CompileRequest, DoesNotFit, Outcome
from runtime.kernels.scatter_blocks import scatter_blocks

GOOD = Compiled(2**30, 2**29, (), 2 * 10**12, 1.0, 2**30, {"jax": "1"})
GATHERED = Collective("all-gather", "f32", (4096, 4096), 2**26, ("data_x",), 16, 1)
WASTEFUL = dataclasses.replace(GOOD, collectives=(GATHERED,))


@pytest.mark.parametrize(
    ("outcome", "code", "num_faults"),
    [(GOOD, 0, 0), (WASTEFUL, 1, 1), (DoesNotFit("17 of 15.75 GiB"), 1, 0), (RuntimeError("no"), 1, 0)],
)
def test_one_bad_program_among_good_ones_fails(monkeypatch, capsys, outcome, code, num_faults):
    def outcome_of(request: CompileRequest) -> tuple[Outcome, bool]:
        found = outcome if request.slice == "v6e-16" else GOOD
        if isinstance(found, RuntimeError):
            raise found
        return found, True

    monkeypatch.setattr(matrix, "outcome_of", outcome_of)
    monkeypatch.setattr(sys, "argv", ["matrix", "--models"])
    assert matrix.main() == code
    rows = capsys.readouterr().out.splitlines()
    assert json.loads(rows[-1])["num_faults"] == num_faults
    assert sum(row.endswith("| none |") for row in rows) == len(matrix.TRIALS) - code


@pytest.mark.parametrize(("chip", "cell", "code"), [("v4", "refuses: ", 0), ("v5e", "fails: ValueError: ", 1)])
def test_a_kernel_may_refuse_a_chip_where_it_is_known_to_and_no_other(monkeypatch, capsys, chip, cell, code):
    with pytest.raises(ValueError) as refusal:
        scatter_blocks("TPU v4", num_devices=16, **SCATTER_SHAPE._asdict(), item_bytes=2, sum_bytes=2)

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if command[-2:] == [chip, "scattered_product"]:
            return subprocess.CompletedProcess(command, 1, "", f"Traceback ...\nValueError: {refusal.value}\n")
        return subprocess.CompletedProcess(command, 0, json.dumps({"peak_memory_in_bytes": 2**30}), "")

    monkeypatch.setattr(matrix.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["matrix", "--kernels"])
    assert matrix.main() == code
    rows = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert cell in rows["| `scattered_product`"]
    assert rows["| `splash`"] == "| `splash` | 1.00 GiB | 1.00 GiB | 1.00 GiB | 1.00 GiB |  |  |"
