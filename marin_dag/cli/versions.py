"""Versions: where the declared version of a step is written, and the edit that raises it."""

import ast
import inspect
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.declared import parsed, place, span_of
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Milestone, Step


class VersionEdit(NamedTuple):
    """One replacement in one file, and the steps whose version it raises."""

    file: Path
    span: tuple[int, int, int, int]
    text: str
    steps: tuple[str, ...]

    @property
    def place(self) -> str:
        """`file:line` of the replacement."""
        return place(self.file, self.span[0])

    def lines(self) -> tuple[str, str]:
        """The line as it is and as it would be."""
        number = self.span[0] - 1
        before, after = self.file.read_bytes(), self.edited()
        return before.splitlines()[number].decode(), after.splitlines()[number].decode()

    def edited(self) -> bytes:
        """The whole file with the replacement; every other byte stays."""
        lines = self.file.read_bytes().splitlines(keepends=True)
        first_line, first_column, last_line, last_column = self.span
        head = [*lines[: first_line - 1], lines[first_line - 1][:first_column]]
        tail = [lines[last_line - 1][last_column:], *lines[last_line:]]
        return b"".join([*head, self.text.encode(), *tail])

    def write(self) -> None:
        """Makes the edit, whole or not at all: it is a person's own source."""
        target = self.file.resolve()
        beside = target.with_name(f"{target.name}.bumped")
        try:
            beside.write_bytes(self.edited())
            shutil.copymode(target, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def next_version(version: str) -> str:
    """The version after this one: a count goes up, anything else gets one appended."""
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdigit() else f"{version}.1"


def version_edit(graph: Graph, step: Step[Any], version: str) -> VersionEdit:
    """The smallest edit after which `step`, and what is derived from it, has `version`.

    Raises:
        UserError: the version is not written out where it is declared, so that a person has to change it.
    """
    sharing = tuple(other.name for other in graph.steps if _comes_from(other, step))
    quoted = json.dumps(version, ensure_ascii=False)
    if step.version_declared is not None:
        call = step.version_declared.call()
        literal = _version_in(call, str(step.version), str(step.version_declared))
        return VersionEdit(step.version_declared.file, span_of(literal), quoted, sharing)
    if step.base is None:
        sharing = tuple(other.name for other in graph.steps if _takes_its_kinds_version(other, step))
        file, literal = _version_of_kind(step)
        return VersionEdit(file, span_of(literal), quoted, sharing)
    if step.declared is None:
        raise UserError(f"{step.name}: a fork made on the command line; bump {_base_of(step).name}, which it inherits.")
    _, _, last_line, last_column = step.declared.span
    end = (last_line, last_column, last_line, last_column)
    return VersionEdit(step.declared.file, end, f".with_version({quoted})", sharing)


def version_origin(step: Step[Any]) -> Step[Any]:
    """The step from which `step` inherits its version: itself, or one that it is derived from."""
    while step.version_declared is None and step.base is not None:
        step = _base_of(step)
    return step


def _base_of(step: Step[Any]) -> Step[Any]:
    assert step.base is not None
    return step.base.step if isinstance(step.base, Milestone) else step.base


def _comes_from(step: Step[Any], root: Step[Any]) -> bool:
    """Whether `step` has its version from `root`, or is written by the same call."""
    while step.name != root.name and not _same_call(step, root):
        if step.version_declared is not None or step.base is None:
            return False
        step = _base_of(step)
    return True


def _same_call(step: Step[Any], root: Step[Any]) -> bool:
    return root.declared is not None and step.declared == root.declared


def _takes_its_kinds_version(step: Step[Any], root: Step[Any]) -> bool:
    origin = version_origin(step)
    return origin.kind is root.kind and origin.version_declared is None


def _version_of_kind(step: Step[Any]) -> tuple[Path, ast.Constant]:
    file = Path(inspect.getsourcefile(step.kind.function) or "")
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef) and node.name == step.kind.name:
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and any(item.arg == "version" for item in decorator.keywords):
                    where = place(file, decorator.lineno)
                    return file, _version_in(decorator, str(step.version), where)
    raise UserError(f"{step.name}: version {step.version!r} is not written in {file}; change it where it is set.")


def _version_in(call: ast.Call, version: str, where: str) -> ast.Constant:
    """The literal in a call that declares a version: `version="1"`, or the argument of `with_version`."""
    values = [item.value for item in call.keywords if item.arg == "version"] or call.args[:1]
    for value in values:
        if isinstance(value, ast.Constant) and value.value == version:
            return value
    raise UserError(f"{where}: version {version!r} is computed there, not written out; change it by hand.")
