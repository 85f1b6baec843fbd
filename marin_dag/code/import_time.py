"""Import time: effects of a module's top-level statements when the module is imported.

A statement is quiet if other code sees nothing of it but the names that it binds. A statement that is not proven quiet
is loud. If a module is loud, binds a name twice or changes its own object, its statements count in order.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.pure import CALLERS, FILLED, PLAIN_BUILTINS, READERS, is_plain, is_pure, is_pure_builtin, keeps
from marin_dag.code.syntax import Module, Target, annotations_of, bindings, children, dotted, nodes_of, parameters

Called = tuple[Target, tuple[str, ...]]
"""A dotted name: the target of its first part, and the attributes after that part."""
_PLAIN_NODES = (
    ast.Compare, ast.Constant, ast.Dict, ast.DictComp, ast.GeneratorExp, ast.JoinedStr, ast.List, ast.ListComp, ast.Set,
    ast.SetComp, ast.Tuple,
)  # fmt: skip
_OPERATIONS = frozenset({
    ast.Assert, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.comprehension, ast.For, ast.FormattedValue, ast.If,
    ast.IfExp, ast.Match, ast.Starred, ast.Subscript, ast.UnaryOp, ast.While, ast.withitem,
})  # fmt: skip
"""Nodes whose operands may run a method."""
INSTANCE, ITEM, BASE = "()", "[]", "class"
"""Ends of a dotted name that mean an instance of the class of that name, its item, and a class below it."""
_CONSTRUCTORS = ("__init__", "__post_init__", "model_post_init", "__new__", "__set_name__", "__attrs_post_init__")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Effects(NamedTuple):
    """Effects of some code that one module shows; other effects depend on the names in the fields."""

    is_loud: bool
    called: tuple[Called, ...] = ()
    asked: tuple[Called, ...] = ()
    """Objects that are read: an operation on an object of the project may have an effect."""
    passed: tuple[Called, ...] = ()
    """Arguments of packages' functions; such a function may call its arguments."""
    factories: tuple[Called, ...] = ()
    """Functions whose result is called too, as in `@register("name")`."""


LOUD, QUIET = Effects(is_loud=True), Effects(is_loud=False)


class Statement(NamedTuple):
    """A top-level statement."""

    binds: tuple[str, ...]
    reads: tuple[str, ...]
    """Names of the module whose values the statement reads."""
    changes: bool
    """Whether the statement changes an object of the module, or makes an object that its readers change."""
    computes: bool
    """Whether the value may depend on the state of packages."""
    effects: Effects
    is_import: bool


def statement_of(module: Module, statement: ast.stmt) -> Statement:
    """Return the names, reads and effects of a top-level statement."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        names = tuple(alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        return Statement(names, (), False, False, QUIET, is_import=True)
    found = _Finder(module, is_top=True)
    found.follow([statement])
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        # A discarded result: the function of a package is called for its effect, such as a change of an argument.
        found.is_loud |= any(is_pure(written(each)) for each in targets_of(module, statement.value.func))
    changes = found.changes or is_filled(module, value)
    is_definition = isinstance(statement, (ast.ClassDef, *_FUNCTIONS))
    return Statement(
        tuple(dict.fromkeys(bindings([statement]).names)),
        tuple(sorted(found.reads)),
        changes,
        bool(found.called if is_definition else found.reads),
        found.effects(),
        is_import=False,
    )


def effects_of_use(module: Module, statements: list[ast.stmt], *, of_instance: bool = False) -> Effects:
    """Return the effects of using a name: calling its function, or making its instance or its value.

    Args:
        statements: those of `module` that bind the name.
        of_instance: for a class, return the effects of operators, indices and attributes of its instances instead.
    """
    found = _Finder(module, is_top=False)
    for statement in statements:
        match statement:
            case ast.FunctionDef():
                found.follow([statement])
            case ast.ClassDef():
                found.instance(statement, is_made=not of_instance)
            case ast.Assign() | ast.AnnAssign():
                found.is_top = True
                found.follow([statement])
            case _:
                return LOUD
    return found.effects()


@dataclasses.dataclass
class _Finder:
    module: Module
    is_top: bool
    """Whether the code only defines its functions; otherwise they run, and define the functions inside them."""
    is_constructor: bool = False
    is_loud: bool = False
    changes: bool = False
    reads: set[str] = dataclasses.field(default_factory=set)
    called: dict[Called, None] = dataclasses.field(default_factory=dict)
    asked: dict[Called, None] = dataclasses.field(default_factory=dict)
    passed: dict[Called, None] = dataclasses.field(default_factory=dict)
    factories: dict[Called, None] = dataclasses.field(default_factory=dict)
    local: set[str] = dataclasses.field(default_factory=set)
    made: set[str] = dataclasses.field(default_factory=set)
    """Local names of objects that the code itself has made, and may therefore change."""

    def effects(self) -> Effects:
        return Effects(self.is_loud, tuple(self.called), tuple(self.asked), tuple(self.passed), tuple(self.factories))

    def instance(self, node: ast.ClassDef, *, is_made: bool) -> None:
        """Follow the methods that make an instance of a class, or else its operators, indices and attributes."""
        for base in [*node.bases, *(keyword.value for keyword in node.keywords if keyword.arg == "metaclass")]:
            self._call(base.value if isinstance(base, ast.Subscript) else base)
        for item in node.body:
            if isinstance(item, _FUNCTIONS) and (_makes(item) if is_made else _answers(item)):
                is_constructor = item.name in _CONSTRUCTORS
                inner = dataclasses.replace(
                    self, is_top=False, is_constructor=is_constructor, changes=False, local=set(), made=set()
                )
                inner.follow([item])  # adds to the same calls and reads
                self.is_loud |= inner.is_loud
            elif is_made and isinstance(item, ast.Assign | ast.AnnAssign):
                keywords = [each for each in nodes_of(item) if isinstance(each, ast.keyword)]
                factories = [each.value for each in keywords if each.arg in ("default_factory", "factory", "init")]
                for factory in factories:
                    if not isinstance(factory, ast.Constant):
                        self._call(factory)

    def follow(self, statements: list[ast.stmt]) -> None:
        """Follow the execution of some statements; call those that are functions."""
        nodes = [node for statement in statements for node in self._executed(statement)]
        self._find_locals(statements, nodes)
        for node in nodes:
            self._visit(node)

    def _executed(self, statement: ast.stmt) -> Iterator[ast.AST]:
        pending: list[ast.AST] = [statement]
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, _FUNCTIONS) and (self.is_top or node is not statement):
                defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
                pending += [*node.decorator_list, *defaults, *annotations_of(node)]
            else:
                pending += children(node)

    def _find_locals(self, statements: list[ast.stmt], nodes: list[ast.AST]) -> None:
        values: dict[str, list[bool]] = {}
        is_class = isinstance(statements[0], ast.ClassDef)
        for node in nodes:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    if isinstance(node, ast.Lambda) or (not self.is_top and node in statements):
                        self.local.update(parameters(node.args))
                    if isinstance(node, _FUNCTIONS) and (node not in statements):
                        self.local.add(node.name)
                case ast.comprehension(target=target):
                    self.local.update(node.id for node in ast.walk(target) if isinstance(node, ast.Name))
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    values.setdefault(name, []).append(self._is_plain(value))
                case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                    values.setdefault(name, [])
        if not self.is_top or is_class:
            self.local.update(values)
            stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
            once = [name for name, each in values.items() if each and stores.count(name) == len(each)]
            self.made.update(name for name in once if all(values[name]))

    def _visit(self, node: ast.AST) -> None:
        if type(node) is ast.Constant:  # a third of them
            return
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                self.reads.add(name)
                self._ask(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for decorator in node.decorator_list:
                    called = decorator.func if isinstance(decorator, ast.Call) else decorator
                    if not _is_accessor(called):
                        self._call(called)
                    if isinstance(decorator, ast.Call):
                        self.factories.update(dict.fromkeys(targets_of(self.module, called)))
                if isinstance(node, ast.ClassDef):
                    for base in node.bases:
                        self._derive(base)
                    for keyword in node.keywords:
                        if keyword.arg == "metaclass":
                            self._call(keyword.value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if self.is_top and self._is_wrapped(name):
                self.changes = True  # `function.defvjp(...)` of a function that a package has wrapped
            case ast.Call(func=function):
                self._call(function)
                self._arguments(node)
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                self._change(node)
            case ast.AugAssign(target=target) if isinstance(target, ast.Name):
                self._change(target)
            case ast.Name(id=name, ctx=ast.Del()):
                self._change(node)
            case ast.Global() | ast.Nonlocal():
                self.is_loud = True
            case ast.NamedExpr() | ast.Raise() if self.is_top:  # a failed import may have a fallback
                self.is_loud = True
        if isinstance(node, ast.Subscript):
            self._ask_end(node.value, ITEM)
        if type(node) in _OPERATIONS:
            made = [each.func for each in children(node) if isinstance(each, ast.Call)]
            instances = [
                (target, (*chain, INSTANCE)) for each in made for target, chain in targets_of(self.module, each)
            ]
            self.asked.update(dict.fromkeys(instances))

    def _change(self, target: ast.expr) -> None:
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            self.is_loud = True
        elif root.id in self.local:
            is_own = root.id in self.made or (root.id == "self" and self.is_constructor)
            self.is_loud |= root is not target and not is_own
        elif self.is_top and root.id in self.module.definitions:
            self.changes = True
            self._ask(root)
        else:
            self.is_loud = True

    def _ask(self, name: ast.Name) -> None:
        if name.id not in self.local | plain_names(self.module):
            self.asked.update(dict.fromkeys((target, ()) for target in self.module.targets(name.id)))

    def _ask_end(self, expression: ast.expr, end: str) -> None:
        self.asked.update(dict.fromkeys((to, (*chain, end)) for to, chain in targets_of(self.module, expression)))

    def _derive(self, base: ast.expr) -> None:
        """Follow the making of a class below `base`, which a hook of that base may see."""
        generic = base.value if isinstance(base, ast.Subscript) else base
        self.is_loud |= dotted(generic)[0] is None and not self._is_plain(base)
        self._ask_end(generic, BASE)

    def _arguments(self, call: ast.Call) -> None:
        """Follow the functions among the arguments of a call, which the called function may call."""
        name = dotted(call.func)[1][-1:] or dotted(call.func)[:1]
        self.is_loud |= any(keyword.arg == "out" for keyword in call.keywords)
        targets = targets_of(self.module, call.func)
        if not all(is_pure(written(each)) and not keeps(written(each)) for each in targets):
            return  # a function of the project is itself loud where it calls an argument
        is_caller = bool(targets) or name[0] in CALLERS
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if is_caller and isinstance(argument, ast.Name):
                if argument.id in self.local:
                    self.is_loud |= not targets and argument is call.args[0]
                else:
                    self.passed.update(dict.fromkeys(targets_of(self.module, argument)))

    def _call(self, function: ast.expr) -> None:
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            self._call_method_of(function, root)
            return
        name, is_method = root.id, function is not root
        if name in self.local:
            self.is_loud |= not (is_method and name in self.made)
        elif isinstance(function, ast.Attribute) and name in plain_names(self.module):
            if function.attr not in READERS:
                self.changes = True
                self.is_loud |= not self.is_top
        elif not is_bound(self.module, name) and not self.module.star_imports:
            is_type_method = isinstance(function, ast.Attribute) and name in PLAIN_BUILTINS and function.attr in READERS
            self.is_loud |= not (is_type_method or (not is_method and is_pure_builtin(name)))
        else:
            self.called.update(dict.fromkeys(targets_of(self.module, function)))

    def _call_method_of(self, function: ast.expr, root: ast.expr) -> None:
        if isinstance(function, ast.Subscript):  # `Generic[T](...)`
            self._call(function.value)
            return
        is_super = isinstance(root, ast.Call) and isinstance(root.func, ast.Name) and root.func.id == "super"
        is_read = isinstance(function, ast.Attribute) and function.attr in READERS and self._is_plain(root)
        self.is_loud |= not (is_super or is_read)

    def _is_wrapped(self, name: str) -> bool:
        """Return whether a name is a function of the module that decorators of packages wrap."""
        statements = self.module.definitions.get(name, ())
        return bool(statements) and all(
            isinstance(each, ast.FunctionDef) and each.decorator_list for each in statements
        )

    def _is_plain(self, value: ast.expr) -> bool:
        return _is_plain_value(self.module, value, {*plain_names(self.module), *self.made})


def _is_accessor(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "getter", "deleter")


def _makes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method runs when an instance is made, or when an instance is called as a decorator."""
    is_validator = any("validator" in ast.unparse(each) for each in method.decorator_list)
    return is_validator or method.name in _CONSTRUCTORS or method.name == "__call__"


def _answers(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method runs by an operator, an index or an attribute."""
    is_property = any(ast.unparse(each).endswith(("property", "getter")) for each in method.decorator_list)
    return is_property or (method.name.startswith("__") and not _makes(method))


def is_filled(module: Module, node: ast.expr | None) -> bool:
    """Return whether a value is an iterator, which its first reader uses up, or grows when it is read."""
    match node:
        case ast.GeneratorExp():
            return True
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
            if value is not None and _is_plain_value(module, value, plain):
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


def _is_plain_value(module: Module, node: ast.expr, plain: Iterable[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in plain or (not is_bound(module, name) and name in PLAIN_BUILTINS)
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return all(_is_plain_value(module, side, plain) for side in (left, right))
        case ast.UnaryOp(operand=operand):
            return _is_plain_value(module, operand, plain)
        case ast.Subscript(value=generic) | ast.Attribute(value=generic):
            targets = targets_of(module, generic)
            return bool(targets) and all(is_pure(written(target)) for target in targets)
        case ast.Call(func=ast.Name(id=name)) if name in PLAIN_BUILTINS and not is_bound(module, name):
            return True
        case ast.Call(func=ast.Attribute(value=receiver)) if _is_plain_value(module, receiver, plain):
            return True
        case ast.Call(func=function):
            return any(is_plain(written(called)) for called in targets_of(module, function))
    return isinstance(node, _PLAIN_NODES)


def is_bound(module: Module, name: str) -> bool:
    return name in module.definitions or name in module.imports


def written(called: Called) -> str:
    target, chain = called
    return ".".join([str(target).replace(":", "."), *chain])


def targets_of(module: Module, expression: ast.expr) -> list[Called]:
    """Return the possible targets of a dotted name of the module; [] for another expression."""
    base, chain = dotted(expression)
    return [] if base is None else [(target, chain) for target in module.targets(base)]
