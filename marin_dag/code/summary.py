"""Summary of one source file: all that a closure needs of it, as plain data that a cache can keep."""

import ast
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.references import (
    Alias,
    Aspect,
    Reference,
    Scanned,
    alias_of,
    decorated_by,
    is_registering,
    named,
    scan,
)
from marin_dag.code.syntax import Module, Target, parse_module

EFFECTS = "<module>"


class Class(NamedTuple):
    """What may run when a class is made."""

    bases: tuple[Reference, ...]
    keywords: tuple[Target, ...]
    has_hook: bool
    """Whether the class defines `__init_subclass__`."""


class Definition(NamedTuple):
    """A top-level name of a module."""

    scanned: tuple[Scanned, ...]
    """What the name is and reaches, by aspect."""
    alias: tuple[Alias, ...] | None
    """What the name stands for, where the module has only `name = other.thing`."""
    classes: tuple[Class, ...]
    """The classes among the statements that bind the name."""
    is_class: bool
    """Whether each of these statements is a class."""
    decorators: tuple[Target, ...]
    is_registering: bool
    """Whether a decorator's name says that it registers."""
    calls: tuple[Reference, ...]
    """What is called for the value of the name."""


class Summary(NamedTuple):
    """A source file, read as a module of one name."""

    name: str
    is_package: bool
    definitions: dict[str, Definition]
    imports: dict[str, tuple[Target, ...]]
    star_imports: tuple[str, ...]
    loads: tuple[str, ...]
    """Modules that this one imports, and attributes of modules that may be modules."""
    effects: Scanned | None
    """The statements that bind nothing and act when the module is imported."""


def summarize(name: str, path: Path, source: bytes) -> Summary:
    """Return the summary of `source`, the content of `path`, as module `name`."""
    module = parse_module(name, path, source)
    return Summary(
        name,
        path.name == "__init__.py",
        {defined: _definition(module, defined, statements) for defined, statements in module.definitions.items()},
        {bound: tuple(targets) for bound, targets in module.imports.items()},
        tuple(module.star_imports),
        tuple(dict.fromkeys(module.loads)),
        scan(module, EFFECTS, module.effects, Aspect.FULL) if module.effects else None,
    )


def _definition(module: Module, name: str, statements: list[ast.stmt]) -> Definition:
    classes = [statement for statement in statements if isinstance(statement, ast.ClassDef)]
    alias = alias_of(module, name)
    decorators = [each for statement in statements for each in decorated_by(module, statement)]
    return Definition(
        _by_aspect(module, name, statements),
        None if alias is None else tuple(alias),
        tuple(_class(module, each) for each in classes),
        len(classes) == len(statements),
        tuple(target for target, _ in decorators),
        any(is_registering(decorator) for decorator in decorators),
        tuple(_called(module, statements)),
    )


def _by_aspect(module: Module, name: str, statements: list[ast.stmt]) -> tuple[Scanned, ...]:
    full = scan(module, name, statements, Aspect.FULL)
    if all(isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) for statement in statements):
        return scan(module, name, statements, Aspect.VALUE), full, full
    return *(scan(module, name, statements, aspect) for aspect in Aspect if aspect is not Aspect.FULL), full


def _class(module: Module, definition: ast.ClassDef) -> Class:
    return Class(
        tuple(_named(module, definition.bases)),
        tuple(target for keyword in definition.keywords for target, _ in named(module, keyword.value)),
        any(getattr(item, "name", "") == "__init_subclass__" for item in definition.body),
    )


def _called(module: Module, statements: list[ast.stmt]) -> list[Reference]:
    calls = []
    for statement in statements:
        match statement:
            case ast.Assign(value=ast.Call() as call) | ast.AnnAssign(value=ast.Call() as call):
                calls.append(call.func)
    return _named(module, calls)


def _named(module: Module, expressions: list[ast.expr]) -> list[Reference]:
    return [
        Reference(target, chain, Aspect.FULL)
        for expression in expressions
        for target, chain in named(module, expression)
    ]
