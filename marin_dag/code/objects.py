"""Objects of expressions: whether their methods call code of the project, and whether nothing else holds them."""

import ast
from collections.abc import Container, Iterable, Iterator

from marin_dag.code.pure import FILLED, PLAIN_BUILTINS, is_plain, is_pure, shares
from marin_dag.code.syntax import Module, Target, children, dotted, nodes_of

Called = tuple[Target, tuple[str, ...]]
"""A dotted name: the target of its first part, and the attributes after that part."""
_DISPLAYS = (
    *(ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp, ast.Compare),
)
_COPYING = frozenset({"astype", "copy", "format", "join", "replace", "split", "splitlines", "tolist"})
"""Methods whose result nothing else holds."""


def is_filled(module: Module, node: ast.expr | None) -> bool:
    """Return whether a value is an iterator, which its first reader uses up, or grows when it is read."""
    match node:
        case ast.GeneratorExp():
            return True
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Dict(values=items):
            return any(is_filled(module, item) for item in items)
        case ast.Call(func=function):
            names = [written(each) for each in targets_of(module, function)] or [ast.unparse(function)]
            return any(name.startswith(FILLED) for name in names)
    return False


def plain_names(module: Module) -> frozenset[str]:
    """Return the names of objects of Python or of packages, whose methods call no code of the project."""
    if module.plain is None:
        plain: set[str] = set()
        for name, statements in module.definitions.items():
            value = _value_of(statements[0], name) if len(statements) == 1 and name not in module.imports else None
            if value is not None and is_plain_value(module, value, plain):
                plain.add(name)
        module.plain = frozenset(plain)
    return module.plain


def _value_of(statement: ast.stmt, name: str) -> ast.expr | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
            return value
        case ast.AnnAssign(value=ast.expr() as value):
            return value
    return None


def is_plain_value(module: Module, node: ast.expr, plain: Iterable[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in plain or (not is_bound(module, name) and name in PLAIN_BUILTINS)
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return all(is_plain_value(module, side, plain) for side in (left, right))
        case ast.UnaryOp(operand=operand):
            return is_plain_value(module, operand, plain)
        case ast.Subscript(value=generic) | ast.Attribute(value=generic):
            targets = targets_of(module, generic)
            return bool(targets) and all(is_pure(written(target)) for target in targets)
        case ast.Call(func=ast.Name(id=name)) if name in PLAIN_BUILTINS and not is_bound(module, name):
            return True
        case ast.Call(func=ast.Attribute(value=receiver)) if is_plain_value(module, receiver, plain):
            return True
        case ast.Call(func=function):
            return any(is_plain(written(called)) for called in targets_of(module, function))
    return isinstance(node, _DISPLAYS)


def is_data(module: Module, value: ast.expr) -> bool:
    """Return whether a value surely holds no function and no object of the project."""
    nodes = nodes_of(value)
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    inside = {id(node) for function in called for node in nodes_of(function)}
    names = [node for node in nodes if isinstance(node, ast.Name) and id(node) not in inside]
    return (
        not any(isinstance(node, ast.Lambda) for node in nodes)
        and all(is_plain_value(module, name, ()) for name in names)
        and all(is_plain_value(module, each, ()) or _is_of_a_package(module, each) for each in called)
    )


def _is_of_a_package(module: Module, function: ast.expr) -> bool:
    targets = targets_of(module, function)
    return bool(targets) and all(is_pure(written(each)) for each in targets)


def is_bound(module: Module, name: str) -> bool:
    return name in module.definitions or name in module.imports


def is_wrapped(module: Module, name: str) -> bool:
    """Return whether a name is a function of the module that decorators of packages wrap."""
    found = module.definitions.get(name, ())
    return bool(found) and all(isinstance(each, ast.FunctionDef) and each.decorator_list for each in found)


def written(called: Called) -> str:
    target, chain = called
    return ".".join([str(target).replace(":", "."), *chain])


def targets_of(module: Module, expression: ast.expr) -> list[Called]:
    """Return the possible targets of a dotted name of the module; [] for another expression."""
    base, chain = dotted(expression)
    return [] if base is None else [(target, chain) for target in module.targets(base)]


def passed_by(argument: ast.expr) -> Iterator[ast.expr]:
    """Yield the dotted names that an argument is, or holds."""
    match argument:
        case ast.Name() | ast.Attribute():
            yield argument
        case ast.Starred(value=value):
            yield from passed_by(value)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) | ast.Dict(values=items):
            for item in items:
                yield from passed_by(item)
        case ast.IfExp(body=body, orelse=orelse):
            yield from passed_by(body)
            yield from passed_by(orelse)
        case ast.BoolOp(values=items):
            for item in items:
                yield from passed_by(item)


def operands(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node, and the elements of displays among them."""
    for child in children(node):
        yield child
        if isinstance(child, ast.List | ast.Tuple | ast.Set | ast.Dict):
            yield from operands(child)


def is_fresh(module: Module, node: ast.expr, own: Container[str]) -> bool:
    """Return whether an expression makes an object that nothing else holds.

    Args:
        own: names of such objects.
    """
    match node:
        case ast.Name(id=name):
            return name in own
        case ast.IfExp(body=left, orelse=right):
            return is_fresh(module, left, own) and is_fresh(module, right, own)
        case ast.BinOp() | ast.UnaryOp() | ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id=name)) if name in PLAIN_BUILTINS and not is_bound(module, name):
            return True
        case ast.Call(keywords=keywords) if any(each.arg == "copy" for each in keywords):
            return False
        case ast.Call(func=function):
            names = [written(called) for called in targets_of(module, function)]
            is_copy = isinstance(function, ast.Attribute) and function.attr in _COPYING
            return is_copy or any(is_plain(name) and not _may_return_argument(module, node, name) for name in names)
    return isinstance(node, _DISPLAYS)


def _may_return_argument(module: Module, call: ast.Call, name: str) -> bool:
    """Return whether the result of a call may be shared: a package's function may return its argument."""
    is_own = not is_pure(name) or name.startswith(("collections.", "numpy."))
    return shares(name) or not (is_own or all(is_data(module, each) for each in call.args))


def values_of(module: Module, name: str) -> list[ast.expr | None]:
    """Return the values of the statements that bind a name of the module; None for one that is not known."""
    values: list[ast.expr | None] = []
    for statement in module.definitions[name]:
        match statement:
            case ast.AugAssign(target=ast.Name()):
                values.append(ast.Constant(None))  # the object stays, or a new one takes its place
            case _:
                values.append(_value_of(statement, name))
    return [None] if name in module.imports else values


def is_own(module: Module, name: str, depth: int) -> bool:
    """Return whether no other module holds what `depth` attributes and items lead to from a name of the module.

    The result of a class or function of the project counts as own: the caller asks for that function's effects.
    """
    if depth < 2 and all(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in module.definitions[name]):
        return name not in module.imports
    values = values_of(module, name)
    return depth < 2 and all(value is not None and _may_be_own(module, value) for value in values)


def _may_be_own(module: Module, value: ast.expr) -> bool:
    match value:
        case ast.Name(id=name) if name in module.definitions and name not in module.imports:
            others = values_of(module, name)
            return not any(isinstance(each, ast.Name) for each in others) and is_own(module, name, 1)
        case ast.Call(keywords=keywords) if any(each.arg == "copy" for each in keywords):
            return False
        case ast.BinOp() | ast.UnaryOp():  # an operator of the project may return an operand
            return is_plain_value(module, value, plain_names(module))
        case ast.Call(func=function) if targets := targets_of(module, function):
            return not any(_may_return_argument(module, value, written(target)) for target in targets)
    return is_fresh(module, value, ())


def unsafe_names(module: Module) -> frozenset[str]:
    """Return the names of objects of Python or of packages that may hold objects of the project."""
    if module.unsafe is None:
        safe: set[str] = set()
        plain = plain_names(module)
        for name in (each for each in module.definitions if each in plain):
            value = _value_of(module.definitions[name][0], name)
            if value is not None and _is_safe(module, value, safe):
                safe.add(name)
        module.unsafe = plain - safe
    return module.unsafe


def _is_safe(module: Module, value: ast.expr, safe: set[str]) -> bool:
    nodes = nodes_of(value)
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in bound | safe and is_bound(module, node.id):
            targets = module.targets(node.id)
            is_package = all(is_pure(written((target, ()))) for target in targets)
            statements = module.definitions.get(node.id, ())
            is_definition = bool(statements) and all(
                isinstance(each, ast.FunctionDef | ast.ClassDef) for each in statements
            )
            if not is_package and not (is_definition and id(node) not in called):
                return False
    return True
