"""Golden digests, which must never move unnoticed, in any process and under any Python.

Run as a module it prints them, with nothing imported but what an interpreter needs for the engine: `pydantic`. To
accept digests that moved on purpose: `python -m tests.marin_dag.golden > tests/marin_dag/golden_digests.json`.
"""

import dataclasses
import datetime
import decimal
import enum
import importlib
import json
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import BaseModel

from marin_dag.code.fingerprint import closure_of
from marin_dag.graph.step import Runtime, StepKind
from marin_dag.identity.canonical import canonical, sha256
from tests.marin_dag.edit_corpus import FOLDER, read_case, step_in

FILE = Path(__file__).with_name("golden_digests.json")


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    ONE = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True)
class Constant:
    value: float
    workers: Runtime[int] = 1


@dataclasses.dataclass(frozen=True)
class Linear:
    value: float


class Shape(NamedTuple):
    width: int
    height: int


class Inner(BaseModel, frozen=True, extra="forbid"):
    schedule: Constant | Linear


class Outer(BaseModel, frozen=True, extra="forbid"):
    phases: tuple[Inner, ...]
    z_loss: float | None = None


class Open(BaseModel, frozen=True, extra="allow"):
    known: int


VALUES = {
    "scalars": [None, True, 1, 1.0, "1", -0.0, 1e-4, 1e22, 2**70, b"\x00\xff"],
    "texts": ["", "\u00e9", "e\u0301", "\U0001fae8", "\ud800", "\u0085"],
    "containers": [(1, 2), {"b": 1, "a": {2, 1}}, frozenset({"x", "y", "z", "\u00e9"}), {}, {1: "a", "1": "b"}],
    "times": [
        datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 2),
        datetime.timedelta(days=1, seconds=2),
    ],
    "rare": [PurePosixPath("a/b"), decimal.Decimal("1.50"), Color.RED, Level.ONE, Access.READ | Access.WRITE],
    "models": [
        Outer(phases=(Inner(schedule=Constant(1e-3)), Inner(schedule=Linear(1.0))), z_loss=1e-4),
        Open(known=1, unknown="x"),  # type: ignore[call-arg]
        Shape(1, 2),
    ],
}


def golden_digests() -> dict[str, dict[str, str]]:
    """Return the digests of values, and of every project of the corpus of edits, which pin the reading of code."""
    edits = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(FOLDER.glob("*.edit")):
            with step_in(read_case(path).after, Path(folder, path.stem)) as step:
                edits[path.stem] = step.digest
    return {"values": {name: sha256(canonical(value, name)) for name, value in VALUES.items()}, "edits": edits}


def shipped_fingerprints() -> dict[str, str]:
    """Return the fingerprint of every kind of step that this project has."""
    found = {}
    for path in sorted(Path(__file__).parents[2].joinpath("steps").glob("*.py")):
        if "\n@step(" not in path.read_text():  # helpers of a step import what only a run needs
            continue
        for name, value in sorted(vars(importlib.import_module(f"steps.{path.stem}")).items()):
            if isinstance(value, StepKind):
                found[f"{path.stem}.{name}"] = closure_of(value.function).fingerprint
    return found


if __name__ == "__main__":
    digests = golden_digests()
    json.dump({**digests, "shipped": shipped_fingerprints()} if "--all" in sys.argv else digests, sys.stdout, indent=1)
    print()
