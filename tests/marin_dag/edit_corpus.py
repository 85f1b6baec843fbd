"""The corpus of edits in `tests/edits/`: reading a case, and running it as a project.

A case is a sentence, its verdict, and the files of a small project. Each line of a file begins with two columns: `- `
before the edit only, `+ ` after it only, two spaces both. A file `project/step.py` that a case does not write calls
`project.work.work()` and returns what it gives, so that a case can also be run.
"""

import ast
import contextlib
import dataclasses
import decimal
import importlib
import os
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from marin_dag.code.fingerprint import _start_of, value_types
from marin_dag.graph.step import Step
from marin_dag.identity.code_identity import package_version
from marin_dag.identity.diff import CodeChanged, DeclarationChanged, FieldChanged, differences

FOLDER = Path(__file__).parents[1] / "edits"
STEP = """
from pydantic import BaseModel
from marin_dag.graph.step import StepContext, step

class Config(BaseModel, frozen=True, extra="forbid"):
    pass

class Result(BaseModel, frozen=True, extra="forbid"):
    text: str

@step()
def run(config: Config, context: StepContext) -> Result:
    from project.work import work

    return Result(text=repr(work()))

def build():
    return run("run", Config())
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """An edit, and its expected verdict."""

    name: str
    sentence: str
    is_changed: bool
    reasons: tuple[str, ...]
    opaque: tuple[str, ...]
    needless: str
    """Why an edit with the same result gets the verdict "changed"; empty where the result changes."""
    before: dict[str, str]
    after: dict[str, str]


def read_case(path: Path) -> Case:
    """Parse a file of the corpus."""
    head, *parts = path.read_text().split("\n=== ")
    sentence, _, rest = head.partition("\n")
    head_lines: dict[str, list[str]] = {}
    for line in filter(None, rest.splitlines()):
        key, _, value = line.partition(": ")
        head_lines.setdefault(key, []).append(value)
    assert set(head_lines) <= {"verdict", "because", "opaque", "needless"}, path
    (verdict,) = head_lines["verdict"]
    before, after = {}, {}
    for part in parts:
        name, _, body = part.partition("\n")
        for files, other in ((before, "+"), (after, "-")):
            lines = [line[2:] for line in body.splitlines() if not line.startswith(other)]
            if lines or not body.strip():
                files[name.strip()] = "\n".join(lines) + "\n"
        assert all(line[:2] in ("", "  ", "- ", "+ ", "-", "+") for line in body.splitlines()), (path, name)
    return Case(
        path.stem,
        sentence,
        {"same": False, "changed": True}[verdict],
        tuple(sorted(head_lines.get("because", []))),
        tuple(head_lines.get("opaque", [])),
        " ".join(head_lines.get("needless", [])),
        before,
        after,
    )


@dataclasses.dataclass(frozen=True)
class Seen:
    """A project as the engine sees it, and its result."""

    step: Step[Any]
    result: Any


def look(files: dict[str, str], root: Path) -> Seen:
    """Write a project below `root`, import it, and run its step."""
    with step_in(files, root) as step:
        return Seen(step, step.kind.function(step.config, None).model_dump())


def fingerprint(files: dict[str, str], root: Path, like: Step[Any]) -> str:
    """Write a project below `root` and return its fingerprint for the function and config of a step like another."""
    write(files, root)
    function = like.kind.function
    where = root / "project/step.py", function.__module__, function.__qualname__, False
    closures, places, _ = _start_of(where, value_types(like.config))
    return closures.closure(places).fingerprint


@contextlib.contextmanager
def step_in(files: dict[str, str], root: Path) -> Iterator[Step[Any]]:
    """Write a project below `root` and yield its step; modules that only a run imports are not imported."""
    write(files, root)
    with imported_from(root):
        step = importlib.import_module("project.step").build()
        assert step.digest
        yield step


def write(files: dict[str, str], root: Path) -> None:
    for name, text in {"project/__init__.py": "", "project/step.py": STEP, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def mutants(files: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield the project with one constant changed, for each number and each text in its code."""
    for name, text in files.items():
        if not name.endswith(".py"):
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float, str):
                kept = node.value
                node.value = f"{kept}x" if isinstance(kept, str) else kept + 1
                yield {**files, name: ast.unparse(tree)}
                node.value = kept


@contextlib.contextmanager
def imported_from(root: Path) -> Iterator[None]:
    """Make `project` mean the package below `root`, whose settings of the process end with it."""
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    package_version.cache_clear()
    random_state = random.getstate()
    try:
        with decimal.localcontext(), warnings.catch_warnings(), np.printoptions(), mock.patch.dict(os.environ):
            yield
    finally:
        random.setstate(random_state)
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "project"]:
            del sys.modules[name]


def reasons(before: Step[Any], after: Step[Any]) -> tuple[str, ...]:
    """Return the differences between two steps, as the corpus writes them."""
    found: list[str] = []
    for difference in differences(before.identity, after.identity):
        match difference:
            case CodeChanged(changed, added, removed):
                found += [f"changed {name}" for name in changed]
                found += [f"added {name}" for name in added]
                found += [f"removed {name}" for name in removed]
            case FieldChanged(field, old, new):
                found.append(f"field {field}: {old} -> {new}")
            case DeclarationChanged(what, old, new):
                found.append(f"{what}: {old} -> {new}")
    return tuple(sorted(found))
