"""Module state: a change of a module after its import is seen, whatever its kind, and nothing else is."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.code.module_state import accept_changes, changed_globals, watch_imports

NAME = "module_of_state"
SOURCE = """
import collections, functools, json, math
import numpy as np
LIMIT, RATE, NAME = 3, 0.5, "a"
WORDS, TABLE, SEEN = ["a"], {"a": [1]}, {1, 2}
ORDER = collections.OrderedDict(a=1)
NUMBERS, RAW = np.zeros(3), bytearray(b"abc")
class Box:
    size = 1
    def __init__(self):
        self.items = [1]
    def total(self):
        return sum(self.items)
    @functools.cached_property
    def largest(self):
        return max(self.items)
BOX = Box()
BOXES = {"one": BOX}
def grow(item=[1]):
    WORDS.append("b")
@functools.cache
def known():
    return 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    watch_imports()
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


def found() -> list[str]:
    return sorted(each.removeprefix(f"{NAME}.") for each in changed_globals() if each.startswith(NAME))


def test_nothing_is_found_in_a_module_as_it_was_imported(module: Any) -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("m.LIMIT = 4", ["LIMIT"]),
        ("m.LIMIT = 3.0", ["LIMIT"]),
        ("m.LIMIT = True", ["LIMIT"]),
        ("m.WORDS.append('b')", ["WORDS"]),
        ("m.WORDS[0] = 'b'", ["WORDS"]),
        ("m.grow()", ["WORDS"]),
        ("m.TABLE['a'].append(2)", ["TABLE"]),
        ("m.TABLE = {'a': [2]}", ["TABLE"]),
        ("m.SEEN.discard(1)", ["SEEN"]),
        ("m.ORDER.update(b=2); m.ORDER.move_to_end('a')", ["ORDER"]),
        ("m.NUMBERS[1] = 2", ["NUMBERS"]),
        ("m.RAW[0] = 0", ["RAW"]),
        ("m.BOX.items.append(2)", ["BOX", "BOXES"]),
        ("m.BOX.extra = 1", ["BOX", "BOXES"]),
        ("m.Box.size = 2", ["Box"]),
        ("m.Box.total = lambda self: 0", ["Box"]),
        ("m.Box.__init__ = lambda self: None", ["Box"]),
        ("m.grow = lambda: None", ["grow"]),
        ("m.grow.__code__ = (lambda item: None).__code__", ["grow"]),
        ("m.grow.__defaults__ = (2,)", ["grow"]),
        ("m.grow.__defaults__[0].append(2)", ["grow"]),
        ("m.json = None", ["json"]),
    ],
)
def test_a_change_after_the_import_is_found(module: Any, change: str, names: list[str]) -> None:
    exec(change, {"m": module})
    assert found() == names


@pytest.mark.parametrize(
    "use",
    ["m.LIMIT = 3", "m.BOX.largest", "m.known()", "m.BOX.total()", "m.NEW = 1", "list(m.TABLE)", "m.WORDS[:] = ['a']"],
)
def test_a_use_and_the_same_value_are_no_change(module: Any, use: str) -> None:
    exec(use, {"m": module})
    assert found() == []


def test_a_function_of_a_package_that_is_replaced_is_found(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.dumps", str)
    monkeypatch.setattr("math.pi", 3)
    assert {"json.dumps", "math.pi"} <= changed_globals()
    monkeypatch.undo()
    assert {"json.dumps", "math.pi"}.isdisjoint(changed_globals())


def test_what_a_step_changes_while_it_runs_is_accepted_and_no_more(module: Any) -> None:
    module.LIMIT = 4
    before = changed_globals()
    module.WORDS.append("b")
    accept_changes(before)
    assert found() == ["LIMIT"]


def test_a_module_whose_import_had_begun_is_noted_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if type(each).__name__ != "_Finder"])
    text = "from marin_dag.code.module_state import watch_imports\nwatch_imports()\nLATE = [1]\n"
    (tmp_path / f"{NAME}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(NAME)
    assert found() == []
    module.LATE.append(2)
    assert found() == ["LATE"]
    del sys.modules[NAME]
