"""Syntax of one module: what each top-level name is bound to, read from the source without importing it."""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SCRIPT = "__main__"
"""Name by which `if __name__ == "__main__"` is a function of its module."""


class Target(NamedTuple):
    """Module or attribute that an import binds a name to."""

    module: str
    attribute: str | None
    is_certain: bool = True
    """False for a name that may come from `from module import *`, or be a builtin."""

    def __str__(self) -> str:
        return self.module if self.attribute is None else f"{self.module}:{self.attribute}"


@dataclasses.dataclass
class Module:
    """A parsed source file."""

    name: str
    path: Path
    definitions: dict[str, list[ast.stmt]] = dataclasses.field(default_factory=dict)
    """Statements that bind a top-level name, in order: a function, a class, assignments, or a whole `try`."""
    imports: dict[str, list[Target]] = dataclasses.field(default_factory=dict)
    star_imports: list[str] = dataclasses.field(default_factory=list)
    loads: list[str] = dataclasses.field(default_factory=list)
    """Modules that this one imports, and attributes of modules that may be modules."""
    executed: list[ast.stmt] = dataclasses.field(default_factory=list)
    """The statements that an import executes, in order."""
    documentation: str = ""
    keeps_annotations_as_text: bool = False
    """Whether the module has `from __future__ import annotations`."""
    plain: frozenset[str] | None = None
    """Names that stand for objects of Python's own; None until they are asked for."""
    unsafe: frozenset[str] | None = None
    """Names among `plain` whose objects may hold objects of the project."""

    @property
    def package(self) -> str:
        """The package that a relative import counts from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def targets(self, name: str) -> list[Target]:
        """Return what a name may mean at the top level."""
        own = [Target(self.name, name)] if name in self.definitions else []
        stars = [Target(module, name, is_certain=False) for module in self.star_imports]  # may hide the others
        return [*own, *self.imports.get(name, []), *stars]


def parse_module(name: str, path: Path, source: bytes) -> Module:
    """Return `source`, the content of `path`, parsed as module `name`."""
    module = Module(name, path)
    parsed = ast.parse(source, filename=str(path))
    _mark_own_names(parsed)
    module.documentation = ast.get_docstring(parsed, clean=False) or ""
    for statement in parsed.body:
        _add(module, statement)
    return module


def _add(module: Module, statement: ast.stmt) -> None:
    match statement:
        case ast.Import() | ast.ImportFrom():
            _add_import(module, statement)
            module.executed.append(statement)
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                module.keeps_annotations_as_text |= any(each.name == "annotations" for each in statement.names)
        case ast.If() if is_type_checking(statement.test):
            loaded, executed = len(module.loads), len(module.executed)
            for inner in statement.body:  # known to annotations, and never executed
                _add(module, inner)
            del module.loads[loaded:], module.executed[executed:]
            for inner in statement.orelse:
                _add(module, inner)
        case ast.If() if _is_main_guard(statement.test):
            script = ast.parse(f"def {SCRIPT}(): ...").body[0]  # imports inside it are those of a function
            module.definitions[SCRIPT] = [replaced(script, body=statement.body)]
            for inner in statement.orelse:
                _add(module, inner)
        case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
            return
        case _:
            module.executed.append(statement)
            # A compound statement defines, as a whole, every name that it binds.
            bound = bindings([statement])
            names = set(bound.names)
            for name in names:
                module.definitions.setdefault(name, []).append(statement)
            for inner in bound.imports:  # `try: from fast import f; except ImportError: from slow import f` means both
                _add_import(module, inner)


def _add_import(module: Module, statement: ast.Import | ast.ImportFrom) -> None:
    module.loads.extend(loaded_by(statement, module.package))
    for name, target in imported(statement, module.package):
        if name == "*":
            module.star_imports.append(target.module)
        else:
            module.imports.setdefault(name, []).append(target)


def is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is false whenever the program runs."""
    return _is_of_typing(test, "TYPE_CHECKING")


def is_overload(statement: ast.stmt) -> bool:
    """Return whether a function is an `@overload`, which only type checkers read."""
    return any(_is_of_typing(decorator, "overload") for decorator in getattr(statement, "decorator_list", ()))


_OF_TYPING = frozenset({"TYPE_CHECKING", "overload"})


def _mark_own_names(parsed: ast.Module) -> None:
    """Mark the uses of names like those of `typing` that the module binds otherwise."""
    nodes = nodes_of(parsed)
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id in _OF_TYPING]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=module, names=imported_names) if module not in ("typing", "typing_extensions"):
                own.update(each.asname or each.name for each in imported_names)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
    for node in names:
        if node.id in own:
            node.__dict__["is_own"] = True


def _is_of_typing(expression: ast.expr, name: str) -> bool:
    return not expression.__dict__.get("is_own") and dotted(expression) in ((name, ()), ("typing", (name,)))


def _is_main_guard(test: ast.expr) -> bool:
    return ast.unparse(test) == "__name__ == '__main__'"


def imported(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Target]]:
    """Yield the names that an import binds, each with its target."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname:
                yield alias.asname, Target(alias.name, None)
            else:
                yield alias.name.partition(".")[0], Target(alias.name.partition(".")[0], None)
        return
    base = absolute(statement.module or "", statement.level, package)
    for alias in statement.names:
        yield alias.asname or alias.name, Target(base, alias.name)


def loaded_by(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the modules that an import executes; `from a import b` may mean the module `a.b`: the caller checks."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    base = absolute(statement.module or "", statement.level, package)
    yield base
    yield from (f"{base}.{alias.name}" for alias in statement.names if alias.name != "*")


def absolute(name: str, level: int, package: str) -> str:
    """Return what `name` after `level` dots means inside `package`."""
    if not level:
        return name
    parts = package.split(".")
    parents = parts[: len(parts) - level + 1]
    return ".".join([*parents, name] if name else parents)


class Bindings(NamedTuple):
    """Names that statements bind in their own scope."""

    names: list[str]
    imports: list[ast.Import | ast.ImportFrom]
    nonlocals: list[str]
    globals: list[str]
    """Names declared `nonlocal` or `global`."""


Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bindings(statements: Iterable[ast.AST]) -> Bindings:
    """Return the names that statements bind in their own scope, imports included; of inner functions only the names."""
    found = Bindings([], [], [], [])
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
            case ast.Global():
                found.globals.extend(node.names)
            case ast.Nonlocal():
                found.nonlocals.extend(node.names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.names.append(name)
            case ast.MatchMapping(rest=str(name)):
                found.names.append(name)
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, _COMPREHENSIONS):
            # Their targets are their own; only a walrus inside reaches this scope.
            found.names.extend(_walrus_names(node))
            continue
        pending.extend(children(node))
    return found


def bindings_of(scope: Scope) -> Bindings:
    """Return the names that the body of a function or class binds; kept on the node, as `nodes_of` does."""
    found: Bindings | None = scope.__dict__.get("bindings")
    if found is None:
        found = scope.__dict__["bindings"] = bindings([scope.body] if isinstance(scope, ast.Lambda) else scope.body)
    return found


def _walrus_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.NamedExpr):
        yield node.target.id
    if not isinstance(node, ast.Lambda):
        for child in children(node):
            yield from _walrus_names(child)


def stored_names(target: ast.expr) -> Iterator[str]:
    yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the child nodes without operators; faster than `ast.iter_child_nodes`, as a plan walks 100,000 nodes."""
    for field in _FIELDS_WITH_CHILDREN[type(node)]:
        value = getattr(node, field, None)
        if type(value) is list:
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST):
            yield value


def nodes_of(statement: ast.AST) -> list[ast.AST]:
    """Return a node and all nodes below it; the list is kept on the node, since several analyses walk it."""
    found: list[ast.AST] | None = statement.__dict__.get("nodes")
    if found is None:
        found = [statement]
        for node in found:  # without `children`, whose generator takes half of the time
            for field in _FIELDS_WITH_CHILDREN[type(node)]:
                value = getattr(node, field, None)
                if type(value) is list:
                    found += [item for item in value if isinstance(item, ast.AST)]
                elif isinstance(value, ast.AST):
                    found.append(value)
        statement.__dict__["nodes"] = found
    return found


_NO_CHILDREN = frozenset({"arg", "asname", "attr", "ctx", "id", "kind", "level", "module", "op", "ops", "type_comment"})
"""Fields that hold operators, texts and numbers; others may hold them, too."""
_FIELDS_WITH_CHILDREN = {
    kind: () if kind is ast.Constant else tuple(field for field in kind._fields if field not in _NO_CHILDREN)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def arguments_of(arguments: ast.arguments) -> list[ast.arg]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [argument for argument in every if argument is not None]


def parameters(arguments: ast.arguments) -> list[str]:
    return [argument.arg for argument in arguments_of(arguments)]


def dotted(expression: ast.expr) -> tuple[str | None, tuple[str, ...]]:
    """Return base and attributes of a dotted name; the base is None for another expression."""
    chain: list[str] = []
    while isinstance(expression, ast.Attribute):
        chain.append(expression.attr)
        expression = expression.value
    return (expression.id if isinstance(expression, ast.Name) else None), tuple(reversed(chain))


def without_config_type(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """Return a step function without the annotation of its first parameter: the config is known by value."""
    arguments = ast.arguments(**vars(function.args))
    where = "posonlyargs" if arguments.posonlyargs else "args"
    positional = getattr(arguments, where)
    setattr(
        arguments, where, [*(ast.copy_location(ast.arg(each.arg), each) for each in positional[:1]), *positional[1:]]
    )
    return replaced(function, args=arguments)


def replaced(node: ast.stmt, **fields: object) -> ast.stmt:
    copy = type(node)(**{name: getattr(node, name) for name in node._fields if hasattr(node, name)})
    for name, value in fields.items():
        setattr(copy, name, value)
    return ast.copy_location(copy, node)


def annotations_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Return the annotations that defining a function evaluates."""
    annotations = [each.annotation for each in arguments_of(node.args)]
    return [each for each in (*annotations, node.returns) if each is not None]
