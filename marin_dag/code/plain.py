"""Plain objects: values of Python's own and of packages, whose methods and operators run no code of the project."""

import ast
from collections.abc import Iterable

from marin_dag.code.pure import ONE_SHOT_BUILTINS, PLAIN_BUILTINS, is_plain, is_pure
from marin_dag.code.syntax import Module, Target, dotted

_PLAIN_NODES = (
    *(ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp, ast.Compare),
)

Called = tuple[Target, tuple[str, ...]]
"""A dotted name: what its base stands for, and the attributes behind it."""


def plain_names(module: Module) -> frozenset[str]:
    """Return the names that stand for objects of Python's own: each bound once, to a literal or a call of a builtin."""
    if module.plain is None:
        plain: set[str] = set()
        for name, statements in module.definitions.items():
            if len(statements) == 1 and name not in module.imports:
                value = _value_of(statements[0], name)
                if value is not None and is_plain_value(module, value, plain):
                    plain.add(name)
        module.plain = frozenset(plain)
    return module.plain


def _value_of(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return what an assignment gives to a name."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
            return value
        case ast.AnnAssign(value=ast.expr() as value):
            return value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
            pairs = zip(names, values, strict=True)
            return next((value for bound, value in pairs if isinstance(bound, ast.Name) and bound.id == name), None)
    return None


def is_plain_value(module: Module, node: ast.expr, plain: Iterable[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in plain
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):  # of two sets, or of two types
            return all(is_plain_value(module, side, plain) or _is_type(module, side) for side in (left, right))
        case ast.BinOp(left=left, right=right):
            return is_plain_value(module, left, plain) and is_plain_value(module, right, plain)
        case ast.UnaryOp(operand=operand):
            return is_plain_value(module, operand, plain)
        case ast.Subscript(value=generic) | ast.Attribute(value=generic):
            return bool(targets_of(module, generic)) and all(
                is_pure(written(target)) for target in targets_of(module, generic)
            )
        case ast.IfExp(body=left, orelse=right):
            return is_plain_value(module, left, plain) and is_plain_value(module, right, plain)
        case ast.Call(func=ast.Name(id=name)) if name in PLAIN_BUILTINS and not is_bound(module, name):
            return True
        case ast.Call(func=ast.Attribute(value=receiver)) if is_plain_value(module, receiver, plain):
            return True
        case ast.Call(func=function):
            return any(is_plain(written(called)) for called in targets_of(module, function))
    return isinstance(node, _PLAIN_NODES)


def is_one_shot(module: Module, name: str) -> bool:
    """Return whether a name stands for an iterator, which its first reader uses up."""
    for statement in module.definitions.get(name, ()):
        match statement:
            case ast.Assign(value=ast.GeneratorExp()) | ast.AnnAssign(value=ast.GeneratorExp()):
                return True
            case ast.Assign(value=ast.Call(func=ast.Name(id=called))) if called in ONE_SHOT_BUILTINS:
                return True
    return False


def is_plain_name(module: Module, name: str) -> bool:
    """Return whether a name stands for an object of Python's own."""
    return name in plain_names(module)


def _is_type(module: Module, node: ast.expr) -> bool:
    """Return whether a name stands for a class of the module, or for what a package defines."""
    if isinstance(node, ast.Name) and node.id in module.definitions:
        return all(isinstance(statement, ast.ClassDef) for statement in module.definitions[node.id])
    targets = targets_of(module, node)
    return bool(targets) and all(is_pure(written(target)) for target in targets)


def is_bound(module: Module, name: str) -> bool:
    return name in module.definitions or name in module.imports


def written(called: Called) -> str:
    target, chain = called
    return ".".join([str(target).replace(":", "."), *chain])


def targets_of(module: Module, expression: ast.expr) -> list[Called]:
    """Return what a dotted name of the module may mean; [] for another expression."""
    base, chain = dotted(expression)
    return [] if base is None else [(target, chain) for target in module.targets(base)]
