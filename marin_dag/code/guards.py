"""Guarded imports: statements that let the code go on after the import of a module has failed."""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from marin_dag.code.objects import targets_of, written
from marin_dag.code.syntax import Module, children, loaded_by, nodes_of

Guard = ast.Try | ast.TryStar | ast.With | ast.AsyncWith

_CATCHING = frozenset({"BaseException", "Exception", "ImportError", "ModuleNotFoundError"})
_PASSING = frozenset({
    "bz2.open", "concurrent.futures.ProcessPoolExecutor", "concurrent.futures.ThreadPoolExecutor", "contextlib.chdir",
    "contextlib.closing", "contextlib.nullcontext", "contextlib.redirect_stderr", "contextlib.redirect_stdout",
    "decimal.localcontext", "gzip.open", "io.open", "lzma.open", "open", "os.scandir", "socket.socket",
    "subprocess.Popen", "tarfile.open", "tempfile.NamedTemporaryFile", "tempfile.TemporaryDirectory",
    "tempfile.TemporaryFile", "threading.BoundedSemaphore", "threading.Condition", "threading.Lock", "threading.RLock",
    "threading.Semaphore", "warnings.catch_warnings", "zipfile.ZipFile",
})  # fmt: skip
"""Functions of Python's own whose context managers pass every exception on."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def guarded_by(node: Guard, module: Module, names_of: Callable[[ast.expr], Sequence[str]]) -> Iterator[str]:
    """Yield the modules that a statement imports where such an import may fail while the code goes on.

    Args:
        node: a statement of `module`.
        names_of: returns the full names that a dotted name may mean where the statement stands.
    """
    for inner in (each for statement in _guarded(node, module, names_of) for each in nodes_of(statement)):
        if isinstance(inner, ast.Import | ast.ImportFrom):
            yield from loaded_by(inner, module.package)


def _guarded(node: Guard, module: Module, names_of: Callable[[ast.expr], Sequence[str]]) -> list[ast.stmt]:
    """Return the statements whose exceptions a statement may catch; a handler of any error counts."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return [] if all(_passes(each.context_expr, module, names_of) for each in node.items) else node.body
    if _leaves(node.finalbody):
        return [*node.body, *(each for handler in node.handlers for each in handler.body), *node.orelse]
    return node.body if node.handlers else []


def _passes(manager: ast.expr, module: Module, names_of: Callable[[ast.expr], Sequence[str]]) -> bool:
    """Return whether a context manager surely passes exceptions on: such a call, or a name of the module for one."""
    if isinstance(manager, ast.Call):
        names = names_of(manager.func)
        return bool(names) and not module.star_imports and _PASSING.issuperset(names)
    if not isinstance(manager, ast.Name) or list(names_of(manager)) != [f"{module.name}.{manager.id}"]:
        return False
    nodes = (each for statement in module.executed for each in nodes_of(statement))
    if any(isinstance(each, ast.Global) and manager.id in each.names for each in nodes):
        return False
    match module.definitions[manager.id]:
        case [ast.Assign(targets=[ast.Name()], value=ast.Call() as made)]:
            return _passes(made, module, lambda name: [written(each) for each in targets_of(module, name)])
    return False


def catches_imports(node: Guard) -> bool:
    """Return whether a statement catches what a failed import raises, by how such exceptions are spelt."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(not _CATCHING.isdisjoint(_names(each.context_expr)) for each in node.items)
    caught = (each.type is None or not _CATCHING.isdisjoint(_names(each.type)) for each in node.handlers)
    return any(caught) or _leaves(node.finalbody)


def _names(node: ast.AST) -> Iterator[str]:
    yield from (each.id for each in nodes_of(node) if isinstance(each, ast.Name))


def _leaves(statements: Iterable[ast.AST], *, is_in_loop: bool = False) -> bool:
    """Return whether statements of a `finally` may leave it, which drops the exception that led to them."""
    for each in statements:
        if isinstance(each, ast.Return) or (isinstance(each, ast.Break | ast.Continue) and not is_in_loop):
            return True
        if isinstance(each, ast.For | ast.AsyncFor | ast.While):
            if _leaves(each.body, is_in_loop=True) or _leaves(each.orelse, is_in_loop=is_in_loop):
                return True
        elif not isinstance(each, _SCOPES) and _leaves(children(each), is_in_loop=is_in_loop):
            return True
    return False
