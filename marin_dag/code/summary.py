"""Summary of one source file: all that a closure needs of it, as plain data that a cache can keep."""

import ast
import builtins
import hashlib
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.import_time import Calls, Statement, calls_of, statements_of
from marin_dag.code.messages import Hears
from marin_dag.code.plain import is_plain_name
from marin_dag.code.reads import NOTHING
from marin_dag.code.references import Alias, Aspect, Reference, alias_of, named
from marin_dag.code.scan import Scanned, scan
from marin_dag.code.syntax import Module, Target, imported, is_overload, loaded_by, parse_module

EFFECTS = "<module>"
_PASSIVE_METHODS = frozenset(
    {
        *("__init__", "__new__", "__post_init__", "__repr__", "__str__", "__eq__", "__hash__", "__lt__", "__call__"),
        *("__init_subclass__", "__class_getitem__", "__enter__", "__exit__", "__set_name__", "__del__", "__reduce__"),
        *("__getstate__", "__setstate__", "__bool__"),
    }
)
"""Methods with two underscores that no operator, index or attribute calls, or whose answers are asked for elsewhere."""
UNSEEN = Scanned("", "", (), (), NOTHING, (), Hears(), ())


class Class(NamedTuple):
    """The code that may run when a class is made."""

    bases: tuple[Reference, ...]
    keywords: tuple[Target, ...]
    has_hook: bool
    """Whether the class defines `__init_subclass__`."""
    has_methods: bool
    is_passive: bool
    """Whether its instances answer operators, indices and attributes as Python's own objects do."""


class Definition(NamedTuple):
    """A top-level name of a module."""

    scanned: tuple[Scanned, ...]
    """The value of the name and all it reaches, by aspect."""
    alias: tuple[Alias, ...] | None
    """The target of the name, where the module has only `name = other.thing`."""
    classes: tuple[Class, ...]
    """The classes among the statements that bind the name."""
    is_class: bool
    is_callable: bool
    """Whether each of these statements is a class, or a class or function."""
    is_plain: bool
    """Whether it is an object of Python's own."""
    made_by: tuple[Reference, ...]
    """Functions that are called for its value."""
    calls: Calls
    """Functions that a call of it calls."""
    result_calls: Calls
    """Functions that a call of it, and of its result, calls."""


class Executed(NamedTuple):
    """A statement that an import executes."""

    statement: Statement
    scanned: Scanned | None
    """Its code and all it reaches; None where that is the definition of the one name that it binds."""
    classes: tuple[Class, ...]


class Summary(NamedTuple):
    """A source file, read as a module of one name."""

    name: str
    is_package: bool
    documentation: str
    """Hash of the module's docstring; "" where it has none."""
    definitions: dict[str, Definition]
    imports: dict[str, tuple[Target, ...]]
    star_imports: tuple[str, ...]
    loads: tuple[str, ...]
    """Modules that this one imports, and attributes of modules that may be modules."""
    executed: tuple[Executed, ...]
    rebound: frozenset[str]
    """Names that several statements bind."""


def summarize(name: str, path: Path, source: bytes) -> Summary:
    """Return the summary of `source`, the content of `path`, as module `name`."""
    module = parse_module(name, path, source)
    statements = statements_of(module)
    documentation = hashlib.sha256(ascii(module.documentation).encode()).hexdigest() if module.documentation else ""
    return Summary(
        name,
        path.name == "__init__.py",
        documentation,
        {defined: _definition(module, defined, statements) for defined, statements in module.definitions.items()},
        {bound: tuple(targets) for bound, targets in module.imports.items()},
        tuple(module.star_imports),
        tuple(dict.fromkeys(module.loads)),
        tuple(_executed(module, statement, found) for statement, found in statements),
        _rebound(statements),
    )


def _definition(module: Module, name: str, statements: list[ast.stmt]) -> Definition:
    classes = [statement for statement in statements if isinstance(statement, ast.ClassDef)]
    alias = alias_of(module, name)
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return Definition(
        _by_aspect(module, name, statements),
        None if alias is None else tuple(alias),
        tuple(_class(module, each) for each in classes),
        len(classes) == len(statements),
        all(isinstance(statement, kinds) for statement in statements),
        is_plain_name(module, name),
        _made_by(module, statements),
        calls_of(module, statements),
        calls_of(module, statements, of_result=True),
    )


def _by_aspect(module: Module, name: str, statements: list[ast.stmt]) -> tuple[Scanned, ...]:
    match statements[0]:
        case ast.ClassDef():
            value, full = scan(module, name, statements, Aspect.VALUE, Aspect.FULL)
            return UNSEEN, value, full
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            value, full = scan(module, name, statements, Aspect.VALUE, Aspect.FULL)
            return full, value, full
    of_type, full = scan(module, name, statements, Aspect.TYPE, Aspect.FULL)
    return of_type, full, full


def _class(module: Module, definition: ast.ClassDef) -> Class:
    bases = [each for base in definition.bases for each in named(module, base) or _builtin(base)]
    return Class(
        tuple(Reference(target, chain, Aspect.FULL) for target, chain in bases),
        tuple(target for keyword in definition.keywords for target, _ in named(module, keyword.value)),
        any(getattr(item, "name", "") == "__init_subclass__" for item in definition.body),
        any(isinstance(item, ast.FunctionDef) for item in definition.body),
        not any(isinstance(item, ast.FunctionDef) and _answers(item) for item in definition.body),
    )


def _builtin(base: ast.expr) -> list[Alias]:
    if isinstance(base, ast.Name) and hasattr(builtins, base.id):
        return [(Target("builtins", base.id), ())]
    return []


def _answers(method: ast.FunctionDef) -> bool:
    if method.name.startswith("__"):
        return method.name not in _PASSIVE_METHODS
    return any(ast.unparse(decorator).endswith(("property", "getter")) for decorator in method.decorator_list)


def _made_by(module: Module, statements: list[ast.stmt]) -> tuple[Reference, ...]:
    match statements:
        case [ast.Assign(value=ast.Call(func=function)) | ast.AnnAssign(value=ast.Call(func=function))]:
            return tuple(Reference(target, chain, Aspect.FULL) for target, chain in named(module, function))
    return ()


def _executed(module: Module, statement: ast.stmt, found: Statement) -> Executed:
    classes = [each for each in ast.walk(statement) if isinstance(each, ast.ClassDef)]
    return Executed(found, _scanned(module, statement, found), tuple(_class(module, each) for each in classes))


def _scanned(module: Module, statement: ast.stmt, found: Statement) -> Scanned | None:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        names = [f"{name}={target}" for name, target in imported(statement, module.package)]
        loads = tuple(loaded_by(statement, module.package))
        return UNSEEN._replace(digest="import " + ",".join(names), loads=loads)
    if len(found.binds) == 1 and module.definitions[found.binds[0]] == [statement]:
        return None
    (scanned,) = scan(module, EFFECTS, [statement], Aspect.FULL)
    return scanned


def _rebound(statements: list[tuple[ast.stmt, Statement]]) -> frozenset[str]:
    bound: dict[str, list[bool]] = {}
    for statement, found in statements:
        if not is_overload(statement):
            for name in found.binds:
                bound.setdefault(name, []).append(found.is_import)
    return frozenset(name for name, imports in bound.items() if len(imports) > 1 and not all(imports))
