"""Import time: whether a top-level statement acts when its module is imported.

A statement is inert if its only effect on other code is the names that it binds. Definitions and imports are inert, and
so are assignments that call only pure functions on data. Data holds no function, and no object with methods of the
project, so a package that uses it runs none of the project's code. Every other statement acts; the statements of a
module with one count in order.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator

from marin_dag.code.effects import CONSTRUCTORS, MADE, Called, Effects, Statement, makes_members, targets_of, written
from marin_dag.code.pure import CONSUMERS, ITERATORS, READERS, calls_its_arguments, is_pure, is_pure_builtin
from marin_dag.code.syntax import (
    Module,
    annotations_of,
    bindings,
    bindings_of,
    children,
    dotted,
    imported,
    nodes_of,
    parameters,
    stored_names,
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOUD = (ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom)
_HOLDERS = (ast.List, ast.Tuple, ast.keyword)
_HELD, _OPERAND, _USED = range(3)
_QUIET_DECORATORS = frozenset({"classmethod", "staticmethod", "cache", "functools.cache"})


def statement_of(module: Module, statement: ast.stmt) -> Statement:
    """Return the names, reads and effects of a top-level statement."""
    finder = _Finder(module)
    finder.statement(statement)
    has_star = isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
    return Statement(
        ("*",) if has_star else tuple(dict.fromkeys(bindings([statement]).names)),
        tuple(sorted(finder.reads)),
        _is_rule_of_own_function(module, statement),
        bool(finder.called if isinstance(statement, (ast.ClassDef, *_FUNCTIONS)) else finder.reads),
        finder.effects(),
        isinstance(statement, ast.Import | ast.ImportFrom),
    )


def use_effects(module: Module, statements: Iterable[ast.stmt]) -> Effects:
    """Return the effects of using a name: calling its function with data, making an instance, or reading its value."""
    finder = _Finder(module)
    for statement in statements:
        match statement:
            case ast.FunctionDef():
                finder.body(statement)
            case ast.ClassDef():
                finder.making(statement)
            case _:
                finder.statement(statement)
                finder.is_loud |= not isinstance(statement, ast.Assign | ast.AnnAssign)
    return finder.effects()


def _is_rule_of_own_function(module: Module, statement: ast.stmt) -> bool:
    """Return whether a statement is `function.defvjp(forward, backward)` on a function of this module."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=args, keywords=[])):
            found = module.definitions.get(name, [])
            is_own = name not in module.imports and all(isinstance(each, ast.FunctionDef) for each in found)
            return is_own and len(found) == 1 and all(isinstance(each, ast.Name) for each in args)
    return False


@dataclasses.dataclass
class _Finder:
    module: Module
    is_loud: bool = False
    has_lambda: bool = False
    reads: set[str] = dataclasses.field(default_factory=set)
    called: dict[Called, None] = dataclasses.field(default_factory=dict)
    bases: dict[Called, None] = dataclasses.field(default_factory=dict)
    imported: dict[Called, None] = dataclasses.field(default_factory=dict)
    held: dict[Called, None] = dataclasses.field(default_factory=dict)
    operands: dict[Called, None] = dataclasses.field(default_factory=dict)
    used: dict[Called, None] = dataclasses.field(default_factory=dict)
    local: dict[str, bool] = dataclasses.field(default_factory=dict)
    """Local names of a class body, function or comprehension, and whether each is certainly data."""
    own: str = ""
    """The parameter of a constructor that is the new object."""
    methods: set[str] = dataclasses.field(default_factory=set)
    """Names of the methods of that object."""

    def effects(self) -> Effects:
        return Effects(
            self.is_loud,
            tuple(self.called),
            tuple(self.bases),
            tuple(self.imported),
            tuple(self.held),
            tuple(self.operands),
            tuple(self.used),
            self.has_lambda,
        )

    def body(self, function: ast.FunctionDef, own: str = "") -> None:
        """Follow a call of a function with data; a constructor may set attributes of its new object `own`."""
        names = [*parameters(function.args), *bindings_of(function).names]
        defaults = [each for each in (*function.args.defaults, *function.args.kw_defaults) if each is not None]
        self._visit_all(defaults, _USED)
        outer, self.local, self.own = self.local, dict.fromkeys(names, True), own
        self.is_loud |= any(ast.unparse(each) not in _QUIET_DECORATORS for each in function.decorator_list)
        for statement in function.body:
            self._run(statement)
        self.local, self.own = outer, ""

    def _run(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="getattr"), args=[_, *others])
            ):
                self._visit_all(others, _USED)
                self.local[name] = False  # it may be a method
            case ast.Assign(targets=[ast.Name() | ast.Tuple() as target], value=value):
                self.is_loud |= not all(map(self._is_variable, nodes_of(target)))
                self._visit(value, _USED)
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
                self._visit(value, _USED)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))], value=value) if name == self.own:
                self._visit(value, _USED)
            case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
                self._visit(value, _USED)
            case ast.Raise(exc=ast.Call() as made):
                self._call(made.func)
                self._visit_all(made.args, _OPERAND)
            case ast.If(test=asked, body=body, orelse=orelse) | ast.For(iter=asked, body=body, orelse=orelse):
                self._visit(asked, _OPERAND if isinstance(statement, ast.If) else _USED, is_consumed=True)
                for inner in (*body, *orelse):
                    self._run(inner)
            case _:
                self.is_loud |= not isinstance(statement, ast.Return | ast.Continue | ast.Break)

    def _is_variable(self, target: ast.AST) -> bool:
        """Return whether assigning to a node changes no existing object."""
        if isinstance(target, ast.Attribute):
            return isinstance(target.value, ast.Name) and target.value.id == self.own
        return not isinstance(target, ast.Subscript)

    def making(self, made: ast.ClassDef) -> None:
        """Follow the construction of an instance from data in the class itself, without its bases."""
        self.methods = {item.name for item in made.body if isinstance(item, _FUNCTIONS)}
        is_validated = bool(made.bases) and not any(ast.unparse(each).endswith("NamedTuple") for each in made.bases)
        for item in made.body:
            match item:
                case ast.FunctionDef(name=name) if name in CONSTRUCTORS or name == "model_post_init":
                    self.body(item, parameters(item.args)[0])
                case ast.FunctionDef() if any("valid" in ast.unparse(each) for each in item.decorator_list):
                    self.body(item.__class__(**{**vars(item), "decorator_list": []}))
                case ast.Assign(value=value):
                    self._visit(value, _USED)
                case ast.AnnAssign(annotation=annotation, value=value):
                    self._field(value)
                    if is_validated:
                        self._field(annotation)
                        names = [node for node in nodes_of(annotation) if isinstance(node, ast.Name | ast.Attribute)]
                        self.called.update((each, None) for name in names for each in targets_of(self.module, name))

    def _field(self, expression: ast.expr | None) -> None:
        """Follow the functions in a field's declaration: factories, converters, validators."""
        if isinstance(expression, ast.Name):
            self._visit(expression, _USED)
        for call in (each for each in (nodes_of(expression) if expression else ()) if isinstance(each, ast.Call)):
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                if isinstance(argument, ast.Lambda):
                    self._visit(argument.body, _USED)
                elif isinstance(argument, ast.Name | ast.Attribute):
                    self.called.update(dict.fromkeys(targets_of(self.module, argument)))
                else:
                    self._visit(argument, _USED)

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.ImportFrom():
                self.imported.update(((target, ()), None) for _, target in imported(statement, self.module.package))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(statement)
            case ast.ClassDef():
                self._class(statement)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                self.is_loud |= not all(isinstance(each, ast.Name | ast.Tuple | ast.List) for each in targets)
                self.is_loud |= any(isinstance(each, ast.Attribute | ast.Subscript) for each in _inside(targets))
                self._annotation(getattr(statement, "annotation", None))
                self._visit_all([value, *(each for each in targets if not isinstance(each, ast.Name))])
            case ast.AnnAssign():
                self._annotation(statement.annotation)
            case ast.Assert():
                self._visit_all(children(statement), _OPERAND)
            case ast.If(test=test):
                self._visit(test, _OPERAND)
                for inner in (*statement.body, *statement.orelse):
                    self.statement(inner)
            case ast.Try():
                handled = [each for handler in statement.handlers for each in handler.body]
                for inner in (*statement.body, *handled, *statement.orelse, *statement.finalbody):
                    self.statement(inner)
            case _ if type(statement).__name__ == "TypeAlias":  # new in Python 3.12; evaluated lazily
                pass
            case _ if _is_rule_of_own_function(self.module, statement):
                self._visit_all(nodes_of(statement)[2:])
            case _:
                self.is_loud = True
                self._visit_all(children(statement))

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in function.decorator_list:
            match decorator:
                case ast.Attribute(value=ast.Name(id=name), attr="setter" | "deleter" | "getter") if name in self.local:
                    pass
                case _:
                    self._decorate(decorator)
        defaults = [each for each in (*function.args.defaults, *function.args.kw_defaults) if each is not None]
        self._visit_all(defaults)
        for annotation in annotations_of(function):
            self._annotation(annotation)

    def _class(self, made: ast.ClassDef) -> None:
        names = {item.name for item in made.body if isinstance(item, _FUNCTIONS)}
        self.is_loud |= makes_members(made, names)
        for base in made.bases:
            generic = base.value if isinstance(base, ast.Subscript) else base
            self.is_loud |= dotted(generic)[0] is None or dotted(generic)[0] in self.local
            self.bases.update(dict.fromkeys(targets_of(self.module, generic)))
            self._visit(base)
        for keyword in made.keywords:
            if keyword.arg == "metaclass":
                self._call(keyword.value)
            self._visit(keyword.value)
        for decorator in made.decorator_list:
            self._decorate(decorator)
        outer, self.local = self.local, dict(self.local)
        for item in made.body:
            self.is_loud |= isinstance(item, ast.Import | ast.ImportFrom)
            self.statement(item)
            if isinstance(item, ast.Assign):
                self._visit(item.value, _OPERAND)  # Python calls `__set_name__` of the value
            is_data = isinstance(item, ast.Assign | ast.AnnAssign) and not _mentions(item)
            self.local.update(dict.fromkeys(bindings([item]).names, is_data))
        self.local = outer

    def _decorate(self, decorator: ast.expr) -> None:
        if isinstance(decorator, ast.Call):
            is_partial = dotted(decorator.func)[1][-1:] == ("partial",) or ast.unparse(decorator.func) == "partial"
            self._visit(decorator, _USED if is_partial else _HELD)
        else:
            self._call(decorator)
            self._visit(decorator)

    def _annotation(self, annotation: ast.expr | None) -> None:
        if annotation is not None and not self.module.keeps_annotations_as_text:
            self._visit(annotation)

    def _visit_all(self, nodes: Iterable[ast.AST], role: int = 0) -> None:
        for node in nodes:
            self._visit(node, role)

    def _visit(self, node: ast.AST, role: int = 0, *, is_consumed: bool = False) -> None:
        """Follow an expression.

        Args:
            role: `_HELD` for a value that is only kept, `_OPERAND` for an operand, `_USED` for an argument that a
                function may call.
            is_consumed: whether the statement itself reads an iterator to its end.
        """
        match node:
            case ast.Constant():
                pass
            case ast.Name() | ast.Attribute() if dotted(node)[0] is not None:
                self._name(node, role)
            case ast.Call():
                self._visit_call(node, role, is_consumed)
            case ast.Lambda(args=arguments):
                self.has_lambda = True
                self.is_loud |= role == _USED
                self._visit_all(each for each in (*arguments.defaults, *arguments.kw_defaults) if each is not None)
            case ast.GeneratorExp() if not is_consumed:
                self.is_loud = True
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node, role)
            case ast.Attribute(value=ast.Call(func=function) as made):
                self._visit(made, _USED)
                self.operands.update(dict.fromkeys(targets_of(self.module, function)))
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    self._visit(value, role if key else max(role, _OPERAND))
                self._visit_all((key for key in keys if key is not None), max(role, _OPERAND))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._visit(test, max(role, _OPERAND))
                self._visit_all([body, orelse], role)
            case _:
                self.is_loud |= isinstance(node, _LOUD)
                inner = role if isinstance(node, _HOLDERS) else max(role, _OPERAND)
                self._visit_all(children(node), inner)

    def _name(self, node: ast.Name | ast.Attribute, role: int) -> None:
        base, chain = dotted(node)
        assert base is not None
        self.reads.add(base)
        if base == self.own and base:
            self.is_loud |= role == _USED if not chain else chain[0] in self.methods
        if base in self.local:
            self.is_loud |= (role == _USED or isinstance(node, ast.Attribute)) and not self.local[base]
        else:
            found = (self.held, self.operands, self.used)[role]
            found.update(dict.fromkeys(targets_of(self.module, node)))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, role: int) -> None:
        outer, self.local = self.local, dict(self.local)
        for generator in node.generators:
            self._visit(generator.iter, _USED, is_consumed=True)
            self.local.update(dict.fromkeys(stored_names(generator.target), True))
            self._visit_all(generator.ifs, _OPERAND)
        self._visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt], max(role, _OPERAND))
        self.local = outer

    def _visit_call(self, call: ast.Call, role: int, is_consumed: bool) -> None:
        names = [written(each) for each in targets_of(self.module, call.func)] or [ast.unparse(call.func)]
        if any(name in ITERATORS or name.startswith("itertools.") for name in names):
            self.is_loud |= not is_consumed
        self._call(call.func)
        is_method = isinstance(call.func, ast.Attribute)
        consumes = is_consumed or all(name in CONSUMERS for name in names) or (is_method and call.func.attr == "join")  # type: ignore[attr-defined]
        self.is_loud |= any(keyword.arg == "out" for keyword in call.keywords)
        if role == _USED:
            self.used.update(((target, (*chain, MADE)), None) for target, chain in targets_of(self.module, call.func))
        # NumPy's functions and methods may fill an array, by convention their last positional argument.
        is_filled = len(call.args) > 1 and isinstance(call.args[-1], ast.Name)
        self.is_loud |= is_filled and (is_method or any(name.startswith("numpy.") for name in names))
        if any(map(calls_its_arguments, names)):
            role = _USED
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            self._visit(argument, role, is_consumed=consumes)

    def _call(self, function: ast.expr) -> None:
        """Follow the function of a call; a method must be one that only reads its object."""
        base, chain = dotted(function)
        if isinstance(function, ast.Attribute):
            targets = targets_of(self.module, function)
            is_of_package = bool(targets) and all(is_pure(written(each)) for each in targets)
            if not is_of_package and function.attr in READERS and (base != self.own or not base or chain[1:]):
                self._visit(function.value, _USED)
                return
        if base is None:
            match function:
                case ast.Subscript(value=generic):  # `Generic[T](...)`
                    self._call(generic)
                    self._visit(function)
                case ast.Call():  # `partial(jit, static_argnums=0)(function)`
                    self._visit(function, _USED)
                case _:
                    self.is_loud = True
        elif base in self.local:
            self.is_loud = True
        elif targets := targets_of(self.module, function):
            self.reads.add(base)
            self.called.update(dict.fromkeys(targets))
        else:
            self.is_loud |= isinstance(function, ast.Attribute) or not is_pure_builtin(base)


def _inside(targets: Iterable[ast.expr]) -> Iterator[ast.AST]:
    for target in targets:
        yield from nodes_of(target)


def _mentions(item: ast.stmt) -> bool:
    """Return whether a statement of a class body reads a name or contains a function."""
    value = getattr(item, "value", None)
    return value is not None and any(isinstance(node, ast.Name | ast.Lambda) for node in nodes_of(value))
