"""Normal form: the text of a syntax tree without what a run cannot see.

It leaves out comments, docstrings, layout, names of import aliases and local variables, `@overload` and `if
TYPE_CHECKING`, and does not depend on the Python version, as `ast.dump` and `repr` of a string do.
"""

import ast
import copy
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, get_args

from marin_dag.code.scopes import Comprehension, Function, Scopes
from marin_dag.code.syntax import Target, is_overload, is_type_checking, nodes_of

NodeT = TypeVar("NodeT", bound=ast.AST)
_HOLDS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "type_ignores", "kind"})
_WRITTEN_FIELDS = {
    kind: tuple(field for field in kind._fields if field not in _SKIPPED_FIELDS)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
_WITH_SCOPE = frozenset({*get_args(Function), *get_args(Comprehension), ast.ClassDef})
_NAMES = {
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
    ast.Nonlocal: "names",
}
"""Fields of nodes that hold names of variables as strings."""


class Normal(NamedTuple):
    """A normal form, and the names of local variables that it leaves out."""

    text: str
    variables: tuple[str, ...]


def dump(
    statements: Iterable[ast.stmt],
    imports: Mapping[str, Sequence[Target]],
    *,
    defined: Container[str] = (),
    star_imports: Sequence[str] = (),
    messages: Container[int] = (),
) -> Normal:
    """Return the normal form of some top-level statements of one module.

    Args:
        imports: what the module's imports bind each name to; a name is written as what it stands for.
        defined: names that the module defines itself.
        star_imports: modules that an unknown name may come from.
        messages: ids of nodes of which only the values inside the text are written.
    """
    writer = _Writer(imports, defined, star_imports, messages)
    for statement in statements:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            writer.local = _bound_in(statement)
            writer.body([statement])
    return Normal("".join(writer.parts), tuple(writer.scopes.names))


def readable(statements: Iterable[ast.stmt], imports: Mapping[str, Sequence[Target]]) -> str:
    """Return the statements as source for people to compare: no comments or docstrings, imports spelt out."""
    kept = [_without_docstrings(statement) for statement in statements]
    used = {node.id for statement in kept for node in ast.walk(statement) if isinstance(node, ast.Name)}
    meant = [f"# {name} is {target}\n" for name in sorted(used & imports.keys()) for target in imports[name]]
    return "".join(meant) + "\n\n".join(map(ast.unparse, kept))


def documentation_of(statements: Iterable[ast.stmt]) -> list[str]:
    """Return the docstrings of some statements, of the fields of a class included."""
    found = []
    for statement in statements:
        for node in nodes_of(statement):
            if type(node) is ast.Expr and isinstance(node.value, ast.Constant) and type(node.value.value) is str:
                found.append(node.value.value)
    return found


def _without_docstrings(node: NodeT) -> NodeT:
    """Return `node` without docstrings; expressions, which hold no statements, are not copied."""
    copied = copy.copy(node)
    for field, value in ast.iter_fields(node):
        if isinstance(value, list) and any(isinstance(item, _HOLDS_STATEMENTS) for item in value):
            kept = [_without_docstrings(item) for item in value if not _is_text(item)]
            setattr(copied, field, kept or ([ast.Pass()] if field == "body" else []))
    return copied


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Writer:
    def __init__(
        self,
        imports: Mapping[str, Sequence[Target]],
        defined: Container[str],
        star_imports: Sequence[str],
        messages: Container[int],
    ) -> None:
        self.parts: list[str] = []
        self.local: frozenset[str] = frozenset()
        self.scopes = Scopes()
        self._imports = imports
        self._defined = defined
        self._stars = [f"{module}:*" for module in star_imports]
        self._messages = messages

    def body(self, items: Iterable[object]) -> None:
        self.parts.append("[")
        for item in _kept(items):
            self._write(item)
            self.parts.append(",")
        self.parts.append("]")

    def _write(self, node: object) -> None:
        kind = type(node)
        if kind is ast.Name:
            self.parts.append(f"Name({self._name(node.id)})")  # type: ignore[attr-defined]
        elif kind is ast.Constant:
            value = "message" if id(node) in self._messages else node.value  # type: ignore[attr-defined]
            self.parts.append(f"Constant({_literal(value)})")
        elif kind is list:
            self.body(node)  # type: ignore[arg-type]
        elif isinstance(node, ast.JoinedStr):
            self.parts.append("JoinedStr(")
            is_message = id(node) in self._messages
            self.body(_without_text(node.values) if is_message else _merged(node.values))
            self.parts.append(")")
        elif isinstance(node, ast.AST):
            (self._scoped if kind in _WITH_SCOPE else self._fields)(node)
        else:
            self.parts.append(_literal(node))

    def _scoped(self, node: ast.AST) -> None:
        if isinstance(node, Comprehension):
            self._comprehension(node)
            return
        assert isinstance(node, Function | ast.ClassDef)
        self._fields(node, without="body")
        with self.scopes.class_body(node) if isinstance(node, ast.ClassDef) else self.scopes.function(node):
            self._write(node.body)

    def _comprehension(self, node: Comprehension) -> None:
        self._write(node.generators[0].iter)
        with self.scopes.comprehension(node):
            self.parts.append(f"{type(node).__name__}(")
            for index, generator in enumerate(node.generators):
                self._fields(generator, without="" if index else "iter")
            for element in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self._write(element)
            self.parts.append(")")

    def _fields(self, node: ast.AST, *, without: str = "") -> None:
        self.parts.append(f"{type(node).__name__}(")
        named = _NAMES.get(type(node))
        for field in _WRITTEN_FIELDS[type(node)]:
            value = getattr(node, field, None)
            # Absent and empty are one: a later Python adds fields.
            if value is None or field == without or (type(value) is list and not value):
                continue
            if field in ("orelse", "finalbody") and type(value) is list and not any(True for _ in _kept(value)):
                continue
            if field == named:
                value = [self.scopes.variable(name) or name for name in (value if type(value) is list else [value])]
            self.parts.append(f"{field}=")
            self._write(value)
            self.parts.append(",")
        self.parts.append(")")

    def _name(self, name: str) -> str:
        """Return what a name stands for; a name that is also a local one stays beside it."""
        if (variable := self.scopes.variable(name)) is not None:
            return variable
        targets = [str(target) for target in self._imports.get(name, ())]
        if targets and name not in self._defined and name not in self.local:
            return "=" + "|".join(targets)
        return "|".join([name, *(targets or ([] if name in self._defined else self._stars))])


def _bound_in(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement binds, in whatever scope inside it."""
    found: set[str | None] = set()
    for node in nodes_of(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchMapping(rest=name):
                found.add(name)
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
    return frozenset(name for name in found if name is not None)


def _kept(items: Iterable[object]) -> Iterator[object]:
    """Yield what is not without effect."""
    for item in items:
        match item:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                continue
            case ast.stmt() if is_overload(item):
                continue
            case ast.If() if is_type_checking(item.test):
                yield from _kept(item.orelse)
            case _:
                yield item


def _merged(values: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Yield the parts of an f-string with neighbouring texts joined: Python versions cut them differently."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text += value.value
            continue
        if text:
            yield ast.Constant(text)
            text = ""
        yield value
    if text:
        yield ast.Constant(text)


def _without_text(values: Iterable[ast.expr]) -> Iterator[ast.expr]:
    yield ast.Constant("message")
    yield from (value for value in values if not isinstance(value, ast.Constant))


def _literal(value: object) -> str:
    if type(value) is int:
        return hex(value)  # `repr` refuses above 4,300 digits
    return ascii(value)  # `repr` depends on this Python's Unicode tables
