"""Set constants: a constant that other code has set in this process is seen, and no constant as its source says."""

import importlib
import sys
from pathlib import Path

import pytest

from marin_dag.code.set_constants import set_constants

NAME = "module_of_constants"
SOURCE = """'''Limits.
PARTS = 2
'''
PARTS = len('abc')
LIMIT = 3
RATE: float = 0.5
NAMES = ("a", "b")
TABLE = {"a": 1}
SUM = 60 * 60
TWICE = 1
TWICE = 2
count = 0
LAZY = None
def grow():
    global count
    count += 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    (tmp_path / "module_that_sets.py").write_text(f"import {NAME}\ndef load():\n    {NAME}.LAZY = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (NAME, "module_that_sets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
    return sys.modules[NAME]


def found(*, also: tuple[str, ...] = ()) -> list[str]:
    names = ("LIMIT", "RATE", "NAMES", "TABLE", "SUM", "TWICE", "count", "LAZY", "PARTS", "grow", "absent")
    lines = set_constants([*(f"{NAME}.{name}" for name in names), "module_never_imported.LIMIT", *also])
    return [line.split()[1].removeprefix(f"{NAME}.") for line in lines]


def test_nothing_is_found_in_a_module_as_it_was_imported(module: object) -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("name", "value"), [("LIMIT", 4), ("LIMIT", 3.0), ("LIMIT", True), ("RATE", 0.25), ("NAMES", ("a",)), ("LAZY", 1)]
)
def test_a_constant_that_a_recipe_sets_is_found(module: object, name: str, value: object) -> None:
    setattr(module, name, value)
    assert found() == [name]


@pytest.mark.parametrize(("name", "value"), [("count", 1), ("TWICE", 1), ("LIMIT", 3), ("SUM", 1)])
def test_a_variable_and_a_computed_value_are_none(module: object, name: str, value: object) -> None:
    setattr(module, name, value)
    assert found() == []


def test_a_constant_that_code_of_the_closure_sets_is_none(module: object) -> None:
    sys.modules["module_that_sets"].load()
    assert found(also=("module_that_sets.load",)) == []
    assert found() == ["LAZY"]
