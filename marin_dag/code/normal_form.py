"""Normal form: the text of a syntax tree without what a run cannot see.

It leaves out comments, docstrings, layout, names of local variables and of import aliases, `@overload` and
`if TYPE_CHECKING`, and does not depend on the Python version, as `ast.dump` and `repr` of a string do. Names of
parameters, functions and classes stay: a caller or `__name__` may read them.
"""

import ast
import copy
import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from marin_dag.code.syntax import Target, bindings_of, imported, is_overload, is_type_checking, nodes_of, parameters

_SKIPPED_FIELDS = frozenset({"ctx", "type_comment", "type_ignores", "kind"})
_WITH_NAMES = frozenset(
    {
        *(ast.Name, ast.Constant, ast.JoinedStr, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
        *(ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Nonlocal),
        *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    }
)
"""Kinds of nodes with a form of their own here."""
NodeT = TypeVar("NodeT", bound=ast.AST)
_HOLDS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_READS_LOCAL_NAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "globals"})


def dump(
    statements: Iterable[ast.stmt],
    imports: Mapping[str, Sequence[Target]],
    *,
    package: str = "",
    defined: Container[str] = (),
    star_imports: Sequence[str] = (),
) -> str:
    """Return the normal form of some statements of one module.

    Args:
        statements: the statements.
        imports: what the module's imports bind each name to; a name is written as what it stands for.
        package: the package that a relative import inside the statements counts from.
        defined: names that the module defines itself.
        star_imports: modules that an unknown name may come from.
    """
    writer = _Writer(imports, package, defined, star_imports)
    for statement in statements:
        writer.top(statement)
    return "".join(writer.parts)


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


@dataclasses.dataclass
class _Scope:
    names: dict[str, str | None]
    """Name to its text; None until it is first written, when it gets a number."""
    is_class: bool = False


class _Writer:
    def __init__(
        self,
        imports: Mapping[str, Sequence[Target]],
        package: str,
        defined: Container[str],
        star_imports: Sequence[str],
    ) -> None:
        self.parts: list[str] = []
        self._imports = imports
        self._package = package
        self._defined = defined
        self._star_imports = star_imports
        self._scopes: list[_Scope] = []
        self._num_locals = 0
        self._keeps_locals = False
        self._reads_locals = False

    def top(self, statement: ast.stmt) -> None:
        """Write one statement of the module's top level."""
        already = len(self.parts)
        self._keeps_locals = self._reads_locals = False
        self._write_top(statement)
        if self._reads_locals:
            del self.parts[already:]
            self._keeps_locals = True
            self._write_top(statement)

    def _write_top(self, statement: ast.stmt) -> None:
        self._num_locals = 0
        for kept in _kept([statement]):
            self._write(kept)
            self.parts.append("\n")

    def _write(self, node: object) -> None:
        if type(node) is list:
            self._body(node)
            return
        if isinstance(node, ast.AST) and type(node) not in _WITH_NAMES:  # most of them, so that `match` tries few
            self._fields(node)
            return
        match node:
            case ast.Name():
                self.parts.append(f"Name({self._name(node.id)})")
            case ast.Constant():
                self.parts.append(f"Constant({_literal(node.value)})")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node)
            case ast.ClassDef():
                self._class(node)
            case ast.JoinedStr():
                self.parts.append("JoinedStr(")
                for value in _merged(node.values):
                    self._write(value)
                self.parts.append(")")
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name is not None:
                self.parts.append(f"as {self._name(node.name)} ")
                self._fields(node, skipped=("name",))
            case ast.MatchMapping(rest=str(rest)):
                self.parts.append(f"rest {self._name(rest)} ")
                self._fields(node, skipped=("rest",))
            case ast.Nonlocal():
                self.parts.append(f"Nonlocal({','.join(map(self._name, node.names))})")
            case ast.AST():  # one that may have a name and has none
                self._fields(node)
            case _:
                self.parts.append(_literal(node))

    def _fields(self, node: ast.AST, skipped: tuple[str, ...] = ()) -> None:
        self.parts.append(type(node).__name__)
        self.parts.append("(")
        for field in _WRITTEN_FIELDS[type(node)]:
            if field in skipped:
                continue
            value = getattr(node, field, None)
            # Absent and empty are one: a later Python adds fields.
            if value is None or (type(value) is list and not value):
                continue
            self.parts.append(field)
            self.parts.append("=")
            self._write(value)
            self.parts.append(",")
        self.parts.append(")")

    def _body(self, items: Sequence[object]) -> None:
        self.parts.append("[")
        for item in _kept(items):
            self._write(item)
            self.parts.append(",")
        self.parts.append("]")

    def _class(self, node: ast.ClassDef) -> None:
        self._fields(node, skipped=("body",))
        found = bindings_of(node)
        scope: dict[str, str | None] = {name: name for name in found.names}
        for statement in found.imports:  # attributes, by which the class is used from outside
            for name, target in imported(statement, self._package):
                self.parts.append(f"{name}={target},")
        self._scopes.append(_Scope(scope, is_class=True))
        self._body(node.body)
        self._scopes.pop()

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self._fields(node, skipped=("body",))
        found = bindings_of(node)
        scope: dict[str, str | None] = {
            name: name if self._keeps_locals else None for name in found.names if name not in found.outer
        }
        for statement in found.imports:
            for name, target in imported(statement, self._package):
                scope[name] = f"{scope[name]}|{target}" if scope.get(name) else f"={target}"
        # A run can see the name of a local function, and a parameter as the caller's keyword.
        scope.update({name: name for name in (*found.definitions, *parameters(node.args))})
        self._scopes.append(_Scope(scope))
        self._body([node.body] if isinstance(node, ast.Lambda) else node.body)
        self._scopes.pop()

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.parts.append(type(node).__name__)
        self._write(node.generators[0].iter)  # evaluated outside
        targets = [n.id for part in node.generators for n in ast.walk(part.target) if isinstance(n, ast.Name)]
        self._scopes.append(_Scope({name: name if self._keeps_locals else None for name in targets}))
        for index, part in enumerate(node.generators):
            self._fields(part, skipped=() if index else ("iter",))
        for element in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._write(element)
        self._scopes.pop()

    def _name(self, name: str) -> str:
        for depth, scope in enumerate(reversed(self._scopes)):
            if name not in scope.names or (scope.is_class and depth):  # methods do not see names of their class
                continue
            text = scope.names[name]
            if text is None:
                text = scope.names[name] = f"%{self._num_locals}"
                self._num_locals += 1
            return text
        self._reads_locals = self._reads_locals or name in _READS_LOCAL_NAMES
        targets = [str(target) for target in self._imports.get(name, ())]
        if name in self._defined:
            return "|".join([name, *targets])
        if targets:
            return "=" + "|".join(targets)
        return "|".join([name, *(f"{module}:*" for module in self._star_imports)])


_WRITTEN_FIELDS = {
    kind: tuple(field for field in kind._fields if field not in _SKIPPED_FIELDS)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def _kept(items: Iterable[object]) -> Iterator[object]:
    """Yield what is not without effect. An import is: what it binds a name to stands where the name is used."""
    for item in items:
        match item:
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Pass():
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


def _literal(value: object) -> str:
    if type(value) is int:
        return hex(value)  # `repr` refuses above 4,300 digits
    return ascii(value)  # `repr` depends on this Python's Unicode tables
