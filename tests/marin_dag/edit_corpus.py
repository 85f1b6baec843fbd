"""The corpus of edits in `tests/edits/`: how a case is written down, laid out as a project, and looked at.

A case is a sentence, its verdict, and the files of a small project. Each line of a file begins with two columns: `- `
before the edit only, `+ ` after it only, two spaces both. A file `project/step.py` that a case does not write calls
`project.work.work()` and returns what it gives, so that a case can also be run.
"""

import ast
import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """One edit, and what is expected of it."""

    name: str
    sentence: str
    is_changed: bool
    reasons: tuple[str, ...]
    opaque: tuple[str, ...]
    needless: str
    """Why an edit that gives the same result is told to be another; empty where it gives another."""
    before: dict[str, str]
    after: dict[str, str]


def read_case(path: Path) -> Case:
    """Parses one file of the corpus."""
    head, *parts = path.read_text().split("\n=== ")
    sentence, _, rest = head.partition("\n")
    said: dict[str, list[str]] = {}
    for line in filter(None, rest.splitlines()):
        key, _, value = line.partition(": ")
        said.setdefault(key, []).append(value)
    assert set(said) <= {"verdict", "because", "opaque", "needless"}, path
    (verdict,) = said["verdict"]
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
        tuple(sorted(said.get("because", []))),
        tuple(said.get("opaque", [])),
        " ".join(said.get("needless", [])),
        before,
        after,
    )


@dataclasses.dataclass(frozen=True)
class Seen:
    """A project as the engine sees it, and what it gives."""

    step: Step[Any]
    result: Any


def look(files: dict[str, str], root: Path) -> Seen:
    """Lays a project out below `root`, imports it, and runs its step."""
    with step_in(files, root) as step:
        return Seen(step, step.kind.function(step.config, None).model_dump())


@contextlib.contextmanager
def step_in(files: dict[str, str], root: Path) -> Iterator[Step[Any]]:
    """The step of a project laid out below `root`; what only running it imports is not imported."""
    for name, text in {"project/__init__.py": "", "project/step.py": STEP, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with imported_from(root):
        step = importlib.import_module("project.step").build()
        assert step.digest
        yield step


def mutants(files: dict[str, str]) -> Iterator[dict[str, str]]:
    """The project with one constant changed, for each number and each text in its code."""
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
    """Makes `project` mean the package below `root`."""
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    package_version.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "project"]:
            del sys.modules[name]


def reasons(before: Step[Any], after: Step[Any]) -> tuple[str, ...]:
    """Why one is not the other, as the corpus writes it."""
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
