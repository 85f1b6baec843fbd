"""Syntax of one module: what each top-level name is bound to, read from the source and never by importing it."""

import ast
import copy
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, cast


class Target(NamedTuple):
    """What an import binds a name to: a module, or an attribute of one."""

    module: str
    attribute: str | None
    is_certain: bool = True
    """False for a name that may come from `from module import *`, or be a builtin."""

    def __str__(self) -> str:
        return self.module if self.attribute is None else f"{self.module}:{self.attribute}"


@dataclasses.dataclass
class Module:
    """One parsed source file."""

    name: str
    path: Path
    definitions: dict[str, list[ast.stmt]] = dataclasses.field(default_factory=dict)
    """Statements that bind a top-level name, in order: a function, a class, assignments, or a whole `try`."""
    imports: dict[str, list[Target]] = dataclasses.field(default_factory=dict)
    star_imports: list[str] = dataclasses.field(default_factory=list)
    effects: list[ast.stmt] = dataclasses.field(default_factory=list)
    """Top-level statements that bind nothing: they act when the module is imported."""

    @property
    def package(self) -> str:
        """What a relative import counts from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def parse_module(name: str, path: Path) -> Module:
    """Reads `path` as module `name`."""
    module = Module(name, path)
    for statement in ast.parse(path.read_bytes(), filename=str(path)).body:
        _add(module, statement)
    return module


def _add(module: Module, statement: ast.stmt) -> None:
    match statement:
        case ast.Import() | ast.ImportFrom():
            _add_import(module, statement)
        case ast.If() if _is_type_checking(statement.test):
            for inner in (*statement.body, *statement.orelse):
                _add(module, inner)
        case ast.If() if _is_main_guard(statement.test):
            return
        case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
            return
        case _:
            # A compound statement defines, as a whole, every name that it binds.
            bound = bindings([statement])
            names = set(bound.names)
            for name in names:
                module.definitions.setdefault(name, []).append(statement)
            for inner in bound.imports:  # `try: from fast import f; except ImportError: from slow import f` means both
                _add_import(module, inner)
            if not names or not isinstance(statement, _SIMPLE_DEFINITIONS):
                module.effects.append(statement)


def _add_import(module: Module, statement: ast.Import | ast.ImportFrom) -> None:
    for name, target in imported(statement, module.package):
        if name == "*":
            module.star_imports.append(target.module)
        else:
            module.imports.setdefault(name, []).append(target)


_SIMPLE_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.AugAssign)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _is_main_guard(test: ast.expr) -> bool:
    return "__name__" in ast.unparse(test)


def imported(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Target]]:
    """Names that an import binds, and to what."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname:
                yield alias.asname, Target(alias.name, None)
            else:
                yield alias.name.partition(".")[0], Target(alias.name.partition(".")[0], None)
        return
    base = statement.module or ""
    if statement.level:
        parts = package.split(".")
        parents = parts[: len(parts) - statement.level + 1]
        base = ".".join([*parents, base] if base else parents)
    for alias in statement.names:
        yield alias.asname or alias.name, Target(base, alias.name)


class Bindings(NamedTuple):
    """What statements bind in their own scope."""

    names: list[str]
    imports: list[ast.Import | ast.ImportFrom]
    outer: list[str]
    """Names declared `global` or `nonlocal`."""


_OWN_SCOPE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bindings(statements: Iterable[ast.AST]) -> Bindings:
    """Names that statements bind in their own scope, imports included; inner functions only by their names."""
    found = Bindings([], [], [])
    pending = list(statements)
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is ast.Name:
            if type(node.ctx) is not ast.Load:  # type: ignore[attr-defined]
                found.names.append(node.id)  # type: ignore[attr-defined]
            continue
        if kind is ast.Constant or kind is ast.arguments:
            continue
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.names.append(node.name)
                continue
            case ast.Import() | ast.ImportFrom():
                found.imports.append(node)
                names = (alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*")
                found.names.extend(names)
                continue
            case ast.Global() | ast.Nonlocal():
                found.outer.extend(node.names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.names.append(name)
            case ast.MatchMapping(rest=str(name)):
                found.names.append(name)
        if isinstance(node, _OWN_SCOPE):
            # Their targets are their own; only a walrus inside reaches this scope.
            found.names.extend(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            continue
        pending.extend(children(node))
    return found


def children(node: ast.AST) -> Iterator[ast.AST]:
    """As `ast.iter_child_nodes`, at half the cost: a plan walks a hundred thousand nodes."""
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, ast.AST):
            yield value
        elif type(value) is list:
            for item in value:
                if isinstance(item, ast.AST):
                    yield item


_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "type_ignores", "kind"})


def dump(node: object) -> str:
    """Text of a syntax tree that is the same whatever the comments, docstrings, layout and Python version.

    `ast.dump` differs between versions and keeps docstrings. Imports are left out: what a name is bound to counts,
    not where the import stands.
    """
    parts: list[str] = []
    _dump(node, parts)
    return "".join(parts)


def _dump(node: object, parts: list[str]) -> None:
    if isinstance(node, ast.AST):
        parts.append(type(node).__name__)
        parts.append("(")
        for field in node._fields:
            if field in _SKIPPED_FIELDS:
                continue
            value = getattr(node, field, None)
            if value is None or (type(value) is list and not value):
                continue
            parts.append(field)
            parts.append("=")
            _dump(value, parts)
            parts.append(",")
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for item in node:
            if not _does_nothing(item):
                _dump(item, parts)
                parts.append(",")
        parts.append("]")
    else:
        parts.append(repr(node))


def without_idle(statement: ast.stmt) -> ast.stmt:
    """A copy of `statement` without all that `dump` leaves out of its bodies."""
    return cast(ast.stmt, _WithoutIdle().visit(copy.deepcopy(statement)))


class _WithoutIdle(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and any(isinstance(item, ast.stmt) for item in value):
                kept = [item for item in value if not _does_nothing(item)]
                setattr(node, field, kept or ([ast.Pass()] if field == "body" else []))
        return node


def _does_nothing(node: object) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass))
