"""Scopes of local variables. Code outside a function cannot name them, so their names are not identity.

Parameters, inner functions and classes, imports and `global` names keep their names: callers and `repr` show them.
"""

import ast
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from marin_dag.code.syntax import bindings, bindings_of, nodes_of, parameters, stored_names

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Scopes:
    """The scopes around a node, innermost last."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Names of the variables, each at its number."""
        self._inner: list[dict[str, int | None]] = []
        """The variables of each scope by name; None for a variable that keeps its name."""
        self._are_classes: list[bool] = []
        self._kept: frozenset[str] = frozenset()

    def variable(self, name: str) -> str | None:
        """Return the placeholder of a local variable; None for a name that is kept."""
        for depth, scope in enumerate(reversed(self._inner)):
            if name in scope and not (depth and self._are_classes[-1 - depth]):
                number = scope[name]
                if number == _NEW:
                    number = scope[name] = len(self.names)
                    self.names.append(name)
                return None if number is None else f"${number}"
        return None

    def function(self, node: Function) -> AbstractContextManager[None]:
        bound = bindings_of(node)
        return self._scope(node, {*bound.names, *bound.globals, *parameters(node.args)}.difference(bound.nonlocals))

    def comprehension(self, node: Comprehension) -> AbstractContextManager[None]:
        """Enter a comprehension, except its first iterable, which is evaluated outside."""
        return self._scope(node, {name for generator in node.generators for name in stored_names(generator.target)})

    @contextlib.contextmanager
    def class_body(self, node: ast.ClassDef) -> Iterator[None]:
        """Enter the body of a class, whose names are attributes."""
        self._are_classes.append(True)
        self._inner.append(dict.fromkeys(bindings_of(node).names))
        yield
        self._inner.pop()
        self._are_classes.pop()

    @contextlib.contextmanager
    def _scope(self, node: Function | Comprehension, names: set[str]) -> Iterator[None]:
        if all(self._are_classes):
            self._kept = _kept_names(node)
        self._are_classes.append(False)
        self._inner.append({name: None if name in self._kept else _NEW for name in names})
        yield
        self._inner.pop()
        self._are_classes.pop()


_NEW = -1


def _kept_names(outermost: Function | Comprehension) -> frozenset[str]:
    """Return the names that some scope below a node shows to code outside it."""
    kept: set[str] = set()
    for node in nodes_of(outermost):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                kept.update(parameters(node.args), [] if isinstance(node, ast.Lambda) else [node.name])
            case ast.ClassDef(name=name):
                kept.update([name], bindings_of(node).names)
            case ast.Import() | ast.ImportFrom():
                kept.update(bindings([node]).names)
            case ast.Global(names=names):
                kept.update(names)
        if type_parameters := getattr(node, "type_params", ()):
            kept.update(each.name for each in type_parameters)
        if type(node).__name__ == "TypeAlias":  # new in Python 3.12
            kept.update(stored_names(node.name))  # type: ignore[attr-defined]
    return frozenset(kept)
