"""Import time: what a module's top-level statements bind, read, change and call when the module is imported.

A statement is quiet if it changes nothing that other code can see, apart from the names that it binds. What is not
proven quiet is an effect, and the effects of a module count whole and in order.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.plain import Called, is_bound, is_one_shot, is_plain_value, plain_names, targets_of, written
from marin_dag.code.pure import CALLS_ITS_FIRST, MUTATORS, PLAIN_BUILTINS, is_pure_builtin, keeps_functions
from marin_dag.code.syntax import Module, Target, annotations_of, bindings, dotted, loop_names, parameters

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "model_post_init", "__set_name__", "__attrs_post_init__")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


class Calls(NamedTuple):
    """The calls that some code makes, for a reader who knows which of them are quiet."""

    is_loud: bool
    """Whether it does what no reading proves quiet, whatever its calls are."""
    called: tuple[Called, ...] = ()
    factories: tuple[Called, ...] = ()
    """Functions whose results are called, too, as in `@register("name")`."""
    passed: tuple[tuple[tuple[Called, ...], Called], ...] = ()
    """Pairs of the functions called and an argument of theirs, which they may call if it is a function."""
    asked: tuple[Target, ...] = ()
    """Operands of operators, indices and attributes: an object of the project may answer with an effect."""


class Statement(NamedTuple):
    """A top-level statement."""

    binds: tuple[str, ...]
    asks: tuple[str, ...]
    """Names of the module to whose objects it applies an operator, an index or an attribute."""
    reads: tuple[str, ...]
    """Names of the module whose values it reads."""
    changes: tuple[str, ...]
    """Names of the module whose objects it changes, and names that it binds again."""
    calls: Calls
    is_import: bool
    is_variable: bool
    """Whether it gives names a value."""
    is_definition: bool
    """Whether its place among the others matters only through what it reads and calls."""


def statements_of(module: Module) -> list[tuple[ast.stmt, Statement]]:
    """Return the statements that importing a module executes, in order."""
    plain = plain_names(module)
    return [(statement, _statement(module, statement, plain)) for statement in module.executed]


def calls_of(module: Module, statements: Iterable[ast.stmt], *, of_result: bool = False) -> Calls:
    """Return the calls that calling a definition makes: of a function its body, of a class what makes an instance.

    Args:
        module: the module.
        statements: the definition.
        of_result: also of a function that it returns.
    """
    found = _Effects(module, plain_names(module), follows_inner=of_result)
    for statement in statements:
        match statement:
            case ast.FunctionDef():
                found.function(statement)
            case ast.ClassDef():
                found.constructor(statement)
                found.is_loud |= of_result
            case _:
                found.is_loud = True
    return found.calls()


def _statement(module: Module, statement: ast.stmt, plain: frozenset[str]) -> Statement:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        names = tuple(alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        return Statement(names, (), (), (), Calls(is_loud=False), is_import=True, is_variable=False, is_definition=True)
    found = _Effects(module, plain)
    found.statement(statement)
    bound = bindings([statement])
    is_definition = isinstance(statement, _DEFINITIONS)
    return Statement(
        tuple(dict.fromkeys(bound.names)),
        tuple(sorted(found.asked_names)),
        tuple(sorted(found.reads)),
        tuple(sorted(found.changes)),
        found.calls(),
        is_import=False,
        is_variable=isinstance(statement, ast.Assign | ast.AnnAssign),
        is_definition=is_definition,
    )


@dataclasses.dataclass
class _Effects:
    module: Module
    plain: frozenset[str]
    follows_inner: bool = False
    """Whether functions inside functions are called."""
    is_loud: bool = False
    reads: set[str] = dataclasses.field(default_factory=set)
    changes: set[str] = dataclasses.field(default_factory=set)
    asked_names: set[str] = dataclasses.field(default_factory=set)
    called: dict[Called, None] = dataclasses.field(default_factory=dict)
    factories: dict[Called, None] = dataclasses.field(default_factory=dict)
    passed: dict[tuple[tuple[Called, ...], Called], None] = dataclasses.field(default_factory=dict)
    asked: dict[Target, None] = dataclasses.field(default_factory=dict)
    scopes: list[dict[str, bool]] = dataclasses.field(default_factory=list)
    """Local names, and whether each stands for an object of Python's own that the function has made."""

    def calls(self) -> Calls:
        """Return what was found."""
        return Calls(self.is_loud, tuple(self.called), tuple(self.factories), tuple(self.passed), tuple(self.asked))

    def statement(self, node: ast.AST) -> None:
        """Follow what executing a statement does."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._decorators(node)
                self._expressions([*node.args.defaults, *node.args.kw_defaults])
                self._annotations(annotations_of(node))
                if self.scopes and self.follows_inner:
                    self.function(node)
            case ast.ClassDef():
                self._class(node)
            case ast.Assign(targets=targets, value=value):
                self._expression(value)
                for target in targets:
                    self._target(target)
            case ast.AnnAssign(target=target, value=value, annotation=annotation):
                self._expressions([value])
                self._annotations([annotation])
                self._target(target)
            case ast.AugAssign(target=target, value=value):
                self._expression(value)
                self._change(target)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._change(target)
            case ast.Global() | ast.Nonlocal():
                self.is_loud = True
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Break() | ast.Continue():
                pass
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self._expression(iterated)
                self._target(target)
                self._statements([*body, *orelse])
            case ast.stmt() | ast.excepthandler() | ast.match_case() | ast.withitem():
                for child in ast.iter_child_nodes(node):
                    self._expression(child) if isinstance(child, ast.expr) else self.statement(child)
            case ast.pattern():
                pass

    def _statements(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            self.statement(node)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Follow what calling a function does."""
        body: list[ast.stmt] = [ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body
        self.scopes.append(dict.fromkeys(parameters(node.args), False))
        self.scopes[-1].update(self._locals(body))
        self._statements(body)
        self.scopes.pop()

    def _locals(self, body: list[ast.stmt]) -> dict[str, bool]:
        made: dict[str, bool] = dict.fromkeys(bindings(body).names, False)
        for statement in ast.walk(ast.Module(body, [])):
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    made[name] = is_plain_value(self.module, value, self.plain)
        for statement in ast.walk(ast.Module(body, [])):
            if isinstance(statement, ast.For | ast.withitem | ast.NamedExpr):
                target = statement.optional_vars if isinstance(statement, ast.withitem) else statement.target
                made |= {each.id: False for each in ast.walk(target or ast.Pass()) if isinstance(each, ast.Name)}
        return made

    def constructor(self, node: ast.ClassDef) -> None:
        """Follow what making an instance of a class does."""
        for base in node.bases:
            self._call(base)
        for keyword in node.keywords:
            if keyword.arg == "metaclass":
                self._call(keyword.value)
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and (item.name in _CONSTRUCTORS or _is_validator(item)):
                self.function(item)
            elif isinstance(item, ast.Assign | ast.AnnAssign):
                for keyword in [each for each in ast.walk(item) if isinstance(each, ast.keyword)]:
                    if keyword.arg in ("default_factory", "factory", "init"):
                        self._pass((), keyword.value)

    def _class(self, node: ast.ClassDef) -> None:
        self._decorators(node)
        self._expressions([*node.bases, *(keyword.value for keyword in node.keywords)])
        self.scopes.append({})
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                self._decorators(item)
                self._expressions([*item.args.defaults, *item.args.kw_defaults])
                self._annotations(annotations_of(item))
            else:
                self.statement(item)
                self.scopes[-1].update(dict.fromkeys(bindings([item]).names, False))
        self.scopes.pop()

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            base, chain = dotted(called)
            if base is not None and chain and self._is_local(base):  # `@value.setter` of a property of the class
                continue
            self._call(called)
            if isinstance(decorator, ast.Call):
                self._arguments(decorator, called)
                self.factories.update(dict.fromkeys(targets_of(self.module, called)))

    def _target(self, target: ast.expr) -> None:
        match target:
            case ast.Name():
                pass
            case ast.Tuple(elts=items) | ast.List(elts=items):
                for item in items:
                    self._target(item)
            case ast.Starred(value=value):
                self._target(value)
            case _:
                self._change(target)

    def _change(self, target: ast.expr) -> None:
        """Follow a change of what `target` stands for, or is a part of."""
        for index in [each for each in ast.walk(target) if isinstance(each, ast.Subscript)]:
            self._expression(index.slice)
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript | ast.Starred):
            root = root.value
        if not isinstance(root, ast.Name):
            self.is_loud = True
        elif self._is_local(root.id):
            self.is_loud |= isinstance(target, ast.Attribute | ast.Subscript) and not (
                root.id == "self" or self._made(root.id)
            )
        elif root.id in self.module.definitions and not self.scopes:
            self.changes.add(root.id)
        else:
            self.is_loud = True

    def _expressions(self, nodes: Iterable[ast.expr | None]) -> None:
        for node in nodes:
            if node is not None:
                self._expression(node)

    def _annotations(self, nodes: Iterable[ast.expr]) -> None:
        """Follow what evaluating annotations reads and calls; `X | None` and `Box[int]` have no effect."""
        for node in nodes:
            for part in ast.walk(node):
                if isinstance(part, ast.Call):
                    self._expression(part)
                elif isinstance(part, ast.Name) and not self._is_local(part.id):
                    self.reads.add(part.id)

    def _expression(self, node: ast.AST) -> None:
        match node:
            case ast.Call():
                self._call(node.func)
                self._arguments(node, node.func)
                return
            case ast.Lambda():
                self._expressions([*node.args.defaults, *node.args.kw_defaults])
                return
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self.scopes.append(dict.fromkeys(loop_names(node), False))
                for child in ast.iter_child_nodes(node):
                    self._expression(child)
                self.scopes.pop()
                return
            case ast.Name(id=name):
                if not self._is_local(name):
                    self.reads.add(name)
                    if is_one_shot(self.module, name):
                        self.changes.add(name)
                        self.is_loud |= bool(self.scopes)
                return
            case ast.BinOp(left=left, right=right):
                self._ask(left, right)
            case ast.UnaryOp(operand=asked) | ast.Subscript(value=asked) | ast.Attribute(value=asked):
                self._ask(asked)
            case ast.Compare(left=left, comparators=others):
                self._ask(left, *others)
            case ast.NamedExpr() if not self.scopes:
                self.is_loud = True
        for child in ast.iter_child_nodes(node):
            self._expression(child)

    def _ask(self, *operands: ast.expr) -> None:
        for operand in operands:
            if isinstance(operand, ast.Name) and not self._is_local(operand.id) and operand.id not in self.plain:
                self.asked.update(dict.fromkeys(self.module.targets(operand.id)))
                if operand.id in self.module.definitions and not self.scopes:
                    self.asked_names.add(operand.id)

    def _arguments(self, call: ast.Call, function: ast.expr) -> None:
        callees = tuple(targets_of(self.module, function))
        keeps = any(keeps_functions(written(called)) for called in callees) or self._is_type_method(function)
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            self._expression(argument)
            if not keeps:
                self._pass(callees, argument)
        self.is_loud |= any(keyword.arg == "out" for keyword in call.keywords)
        if isinstance(function, ast.Name) and function.id in CALLS_ITS_FIRST and call.args:
            self._call_argument(call.args[0])
        for keyword in call.keywords:
            if keyword.arg == "key":
                self._call_argument(keyword.value)

    def _call_argument(self, argument: ast.expr) -> None:
        if isinstance(argument, ast.Name) and self._is_local(argument.id):
            self.is_loud = True

    def _pass(self, callees: tuple[Called, ...], argument: ast.expr) -> None:
        if isinstance(argument, ast.Starred):
            argument = argument.value
        if isinstance(argument, ast.Lambda):
            self.function(argument)
        base, _ = dotted(argument)
        if base is not None and not self._is_local(base):
            self.passed.update(dict.fromkeys((callees, each) for each in targets_of(self.module, argument)))

    def _call(self, function: ast.expr) -> None:
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            self._method(function, root)
            return
        name = root.id
        if self._is_local(name):
            self.is_loud |= not (isinstance(function, ast.Attribute) and self._made(name))
        elif isinstance(function, ast.Attribute) and name in self.plain:
            self.reads.add(name)
            if function.attr in MUTATORS:
                self.changes.add(name)
                self.is_loud |= bool(self.scopes)
        elif not is_bound(self.module, name) and not self.module.star_imports:
            self.is_loud |= not (self._is_type_method(function) or (function is root and is_pure_builtin(name)))
        elif isinstance(function, ast.Attribute) and self._is_wrapped(name) and not self.scopes:
            self.changes.add(name)  # `function.defvjp(...)` of a function that a package has wrapped
            self.called.update(dict.fromkeys(self._decorated(name)))
        else:
            self.reads.add(name)
            self.called.update(dict.fromkeys(targets_of(self.module, function)))

    def _is_type_method(self, function: ast.expr) -> bool:
        """Return whether a call is one as `dict.fromkeys(...)`."""
        match function:
            case ast.Attribute(value=ast.Name(id=name), attr=method):
                is_builtin = name in PLAIN_BUILTINS and not is_bound(self.module, name) and not self._is_local(name)
                return is_builtin and method not in MUTATORS
        return False

    def _method(self, function: ast.expr, root: ast.expr) -> None:
        self._expression(root)
        if isinstance(function, ast.Subscript):  # `Generic[T](...)`
            self._call(function.value)
            return
        is_super = isinstance(root, ast.Call) and isinstance(root.func, ast.Name) and root.func.id == "super"
        plain = {*self.plain, *(name for scope in self.scopes for name, is_made in scope.items() if is_made)}
        is_read = isinstance(function, ast.Attribute) and is_plain_value(self.module, root, plain)
        self.is_loud |= not (is_super or is_read)

    def _is_wrapped(self, name: str) -> bool:
        """Return whether a name stands for a function of the module under a decorator."""
        statements = self.module.definitions.get(name, ())
        return bool(statements) and all(
            isinstance(each, ast.FunctionDef) and each.decorator_list for each in statements
        )

    def _decorated(self, name: str) -> Iterator[Called]:
        for statement in self.module.definitions[name]:
            for decorator in getattr(statement, "decorator_list", ()):
                yield from targets_of(self.module, decorator.func if isinstance(decorator, ast.Call) else decorator)

    def _is_local(self, name: str) -> bool:
        return any(name in scope for scope in self.scopes)

    def _made(self, name: str) -> bool:
        return next(scope[name] for scope in reversed(self.scopes) if name in scope)


def _is_validator(item: ast.FunctionDef) -> bool:
    return any("validator" in ast.unparse(decorator) for decorator in item.decorator_list)
