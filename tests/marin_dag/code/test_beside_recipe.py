"""A recipe outside the checkout: the modules beside it count, and so do those in folders that the process searches."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.code.fingerprint import closure_now, covered_by, notice_edits
from marin_dag.graph.step import Step

RECIPE = """
from pydantic import BaseModel
from marin_dag.graph.step import StepContext, step
from own_helpers import FACTOR

class Config(BaseModel, frozen=True, extra="forbid"):
    size: int = 1

class Result(BaseModel, frozen=True, extra="forbid"):
    size: int

@step()
def run(config: Config, context: StepContext) -> Result:
    from own_package.inner import offset
    import own_namespace.module

    return Result(size=config.size * FACTOR + offset() + own_namespace.module.SIZE)
"""
FILES = {
    "own_helpers.py": "FACTOR = 2\n",
    "own_package/__init__.py": "",
    "own_package/inner.py": "def offset():\n    return 3\n",
    "own_namespace/module.py": "SIZE = 4\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/own_recipe.py").write_text(RECIPE)
    for name, text in FILES.items():
        path = tmp_path / "recipe" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    sys.path.insert(0, str(tmp_path / "recipe"))
    importlib.invalidate_caches()
    yield tmp_path / "recipe"
    sys.path.remove(str(tmp_path / "recipe"))


def build() -> tuple[Step[Any], Any]:
    """Return the step of the recipe as a new process would make it, and its result."""
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    notice_edits()
    recipe = importlib.import_module("own_recipe")
    step = recipe.run("run", recipe.Config())
    assert step.digest
    return step, recipe.run.function(step.config, None)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("own_helpers.py", "2", "22"),
        ("own_package/inner.py", "3", "33"),
        ("own_namespace/module.py", "4", "44"),
        ("own_recipe.py", "* FACTOR", "- FACTOR"),
    ],
)
def test_an_edit_beside_the_recipe_counts(folder: Path, name: str, old: str, new: str) -> None:
    before, result = build()
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    after, other_result = build()
    assert result != other_result
    assert before.digest != after.digest


def test_an_edit_of_another_module_beside_the_recipe_does_not_count(folder: Path) -> None:
    (folder / "own_other.py").write_text("SIZE = 1\n")
    before, _ = build()
    (folder / "own_other.py").write_text("SIZE = 2\n")
    assert build()[0].digest == before.digest


@pytest.mark.parametrize(
    ("sentence", "counts"),
    [
        ("own_other is no module here; import_module is", False),
        ("python -m own_other", True),
        ("from math import pi; import sys, own_other", True),
    ],
)
def test_a_word_of_a_sentence_names_no_module(folder: Path, sentence: str, counts: bool) -> None:
    """Whether a module of that name is found depends on the folders that this process searches."""
    recipe = RECIPE.replace("    from own_package", f"    import subprocess; print({sentence!r})\n    from own_package")
    (folder / "own_recipe.py").write_text(recipe)
    (folder / "own_other.py").write_text("SIZE = 1\n")
    before, _ = build()
    (folder / "own_other.py").write_text("SIZE = 2\n")
    assert (build()[0].digest != before.digest) is counts


def test_modules_beside_the_recipe_are_covered(folder: Path) -> None:
    step, _ = build()
    covered = covered_by(step.kind.function, step.config)
    assert {"own_recipe", "own_helpers", "own_package", "own_package.inner", "own_namespace.module"} <= covered.modules
    assert {folder / name for name in FILES} <= covered.files


def test_a_module_in_another_folder_that_is_searched_counts(folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (folder / "own_helpers.py").rename(library / "own_helpers.py")
    sys.path.append(str(library))
    try:
        before, result = build()
        (library / "own_helpers.py").write_text("FACTOR = 22\n")
        after, other_result = build()
    finally:
        sys.path.remove(str(library))
    assert result != other_result
    assert before.digest != after.digest


def test_a_package_that_is_installed_is_not_the_projects(folder: Path) -> None:
    """A folder without `__init__` gives way to an installed package of its name, as in an import."""
    (folder / "pydantic").mkdir()
    (folder / "pydantic/notes.py").write_text("SIZE = 1\n")
    step, _ = build()
    assert not any(name.startswith("pydantic") for name in covered_by(step.kind.function, step.config).modules)


def test_an_edit_is_noticed_after_a_change_of_the_search_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _ = build()
    before = closure_now(step.kind.function).fingerprint
    monkeypatch.syspath_prepend(tmp_path)  # also a step or a library may add a folder
    assert closure_now(step.kind.function).fingerprint == before
    (folder / "own_helpers.py").write_text("FACTOR = 22\n")
    assert closure_now(step.kind.function).fingerprint != before
