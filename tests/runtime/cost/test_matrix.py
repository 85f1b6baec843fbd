"""The matrix of models and machines: it fails where anything does not compile, does not fit, or has a fault."""

import dataclasses
import json
import sys

import pytest

from runtime.cost import matrix
from runtime.cost.request import Compiled, DoesNotFit, Outcome, Request

GOOD = Compiled(2**30, 2**29, (), 2 * 10**12, 1.0, 2**30, {"jax": "1"})
SLOW = dataclasses.replace(GOOD, slow_operations=("a convolution",))


@pytest.mark.parametrize(
    ("outcome", "code", "num_faults"),
    [(GOOD, 0, 0), (SLOW, 1, 1), (DoesNotFit("17 of 15.75 GiB"), 1, 0), (RuntimeError("no"), 1, 0)],
)
def test_one_bad_program_among_good_ones_fails(monkeypatch, capsys, outcome, code, num_faults):
    def outcome_of(request: Request) -> tuple[Outcome, bool]:
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
