"""Import time: effects of a module's top-level statements when the module is imported.

A statement is quiet if other code sees nothing of it but the names that it binds. A statement that is not proven quiet
is loud. If a module is loud, binds a name twice or changes its own object, its statements count in order.
"""

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from marin_dag.code.effects import BASE, IMPORT, INSTANCE, ITEM, QUIET, TYPE, Effects, Statement
from marin_dag.code.methods import CONSTRUCTORS, FACTORIES, answers, is_accessor, is_enum, is_setter, makes
from marin_dag.code.objects import (
    Called,
    is_bound,
    is_data,
    is_filled,
    is_fresh,
    is_own,
    is_plain_value,
    is_wrapped,
    operands,
    passed_by,
    plain_names,
    targets_of,
    unsafe_names,
    written,
)
from marin_dag.code.pure import CALLERS, GROWERS, PLAIN_BUILTINS, READERS, is_pure, is_pure_builtin, keeps
from marin_dag.code.syntax import (
    Module,
    Target,
    annotations_of,
    bindings,
    children,
    dotted,
    imported,
    loaded_by,
    nodes_of,
    parameters,
)

_OPERATIONS = frozenset({
    ast.Assert, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.comprehension, ast.For, ast.FormattedValue, ast.If,
    ast.IfExp, ast.Match, ast.Starred, ast.Subscript, ast.UnaryOp, ast.While, ast.withitem,
})  # fmt: skip
"""Nodes whose operands may run a method."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPUTED = (ast.Call, ast.Starred, ast.Subscript)
"""Expressions whose value may be a function without a name in the code."""
_CLASS_MAKERS = frozenset({"create_model", "make_dataclass", "new_class", "type"})
"""Functions that make a class below bases among their arguments."""


def statement_of(module: Module, statement: ast.stmt) -> Statement:
    """Return the names, reads and effects of a top-level statement."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        names = tuple(alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        is_from = isinstance(statement, ast.ImportFrom)
        targets = [target for _, target in imported(statement, module.package)] if is_from else []
        effects = QUIET._replace(asked=tuple((target, (IMPORT,)) for target in targets))
        return Statement(names, (), False, False, effects, is_import=True)
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
                if any("valid" in ast.unparse(each) for each in statement.decorator_list):
                    for annotation in annotations_of(statement):
                        found._ask_types(annotation)
            case ast.ClassDef():
                found.instance(statement, is_made=not of_instance)
            case _:
                found.is_top = True
                found.follow([statement])
                found.is_loud |= not isinstance(statement, ast.Assign | ast.AnnAssign)
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
    plain: set[str] = dataclasses.field(default_factory=set)
    """Local names of objects of Python or of packages."""
    made: set[str] = dataclasses.field(default_factory=set)
    """Local names, and attributes of `self`, of objects that the code itself has made, and may therefore change."""
    known_imports: list[ast.Import | ast.ImportFrom] = dataclasses.field(default_factory=list)
    """Imports that every import of the module executes; others lie in functions that are called, and in classes."""
    given: set[str] = dataclasses.field(default_factory=set)
    inner_functions: set[str] = dataclasses.field(default_factory=set)

    def effects(self) -> Effects:
        return Effects(self.is_loud, tuple(self.called), tuple(self.asked), tuple(self.passed), tuple(self.factories))

    def instance(self, node: ast.ClassDef, *, is_made: bool) -> None:
        """Follow the methods that make an instance of a class, or else its operators, indices and attributes."""
        for base in [*node.bases, *(keyword.value for keyword in node.keywords if keyword.arg == "metaclass")]:
            self._call(base.value if isinstance(base, ast.Subscript) else base)
        for item in node.body:
            if isinstance(item, _FUNCTIONS) and (makes(item) if is_made else answers(item)):
                is_constructor = item.name in CONSTRUCTORS
                is_constructor |= any(map(is_setter, item.decorator_list)) and is_made
                inner = _Finder(self.module, is_top=False, is_constructor=is_constructor)
                inner.reads, inner.called, inner.asked = self.reads, self.called, self.asked
                inner.passed, inner.factories = self.passed, self.factories
                inner.follow([item])  # adds to the same calls and reads
                self.is_loud |= inner.is_loud or (item.name == "__new__" and not is_made)
            elif not is_made and isinstance(item, ast.Assign | ast.AnnAssign) and isinstance(item.value, ast.Call):
                self._ask_end(item.value.func, INSTANCE)  # a descriptor
                self.is_loud |= dotted(item.value.func) == ("property", ())
            elif is_made and isinstance(item, ast.Assign | ast.AnnAssign):
                keywords = [each for each in nodes_of(item) if isinstance(each, ast.keyword)]
                if isinstance(item, ast.AnnAssign):
                    self._ask_types(item.annotation)
                factories = [each.value for each in keywords if each.arg in FACTORIES]
                for factory in factories:
                    if not isinstance(factory, ast.Constant):
                        self._call(factory)

    def follow(self, statements: list[ast.stmt]) -> None:
        """Follow the execution of some statements; call those that are functions."""
        nodes = [node for statement in statements for node in self._executed(statement)]
        self._find_locals(statements, nodes)
        self.known_imports = bindings(statements).imports if self.is_top else []
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
        values: dict[str, list[ast.expr | None]] = {}
        for node in nodes:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    if isinstance(node, ast.Lambda) or (not self.is_top and node in statements):
                        self.given.update(parameters(node.args))
                    if isinstance(node, _FUNCTIONS) and (node not in statements):
                        self.local.add(node.name)
                        self.inner_functions.add(node.name)
                case ast.comprehension(target=target):
                    self.local.update(node.id for node in ast.walk(target) if isinstance(node, ast.Name))
                case (
                    ast.Assign(targets=[ast.Name() | ast.Attribute(value=ast.Name(id="self")) as name], value=value)
                    | ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value)
                    | ast.AugAssign(target=ast.Name() as name, value=value)
                ):
                    values.setdefault(ast.unparse(name), []).append(value)
                case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                    values.setdefault(name, [])
        self.local |= self.given
        if not self.is_top or isinstance(statements[0], ast.ClassDef):
            self.local.update(name for name in values if name.isidentifier())
            self._find_made({name: each for name, each in values.items() if each and name not in self.given}, nodes)

    def _find_made(self, values: dict[str, list[ast.expr | None]], nodes: list[ast.AST]) -> None:
        """Find the names whose objects the code has made, by all values that it gives them."""
        stored = [ast.unparse(n) for n in nodes if isinstance(getattr(n, "ctx", None), ast.Store)]
        known = {name: each for name, each in values.items() if stored.count(name) == len(each)}
        for name, each in known.items():
            if name in self.local and all(value is not None and self._is_plain(value) for value in each):
                self.plain.add(name)
        grown = {id(n.value) for n in nodes if isinstance(n, ast.AugAssign)}
        for name, each in known.items():
            fresh = [value for value in each if id(value) not in grown]
            if fresh and all(value is not None and is_fresh(self.module, value, ()) for value in fresh):
                self.made.add(name)

    def _visit(self, node: ast.AST) -> None:
        if type(node) is ast.Constant:  # a third of them
            return
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                self.reads.add(name)
                self._ask(node)
            case ast.Attribute(ctx=ast.Load()):
                self._ask_attribute(node)
                if isinstance(node.value, ast.Call):  # `logging.getLogger().level`
                    self.asked.update((each, None) for each in targets_of(self.module, node.value.func))
                    self._ask_end(node.value.func, INSTANCE)
            case ast.comprehension(iter=values) | ast.For(iter=values):
                self._ask_items(values)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if self.is_top and is_wrapped(self.module, name):
                self.changes = True  # `function.defvjp(...)` of a function that a package has wrapped
            case ast.Call(func=function, args=args, keywords=keywords):
                given = [*args, *(each.value for each in keywords)]
                self._call(function, [each for each in given if not is_data(self.module, each)])
                self._arguments(node)
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                self._change(node)
            case ast.AugAssign(target=target):
                self._change(target, is_grown=True)
            case ast.Name(id=name, ctx=ast.Del()):
                self._change(node)
            case ast.Import() | ast.ImportFrom() if node not in self.known_imports:
                self.asked.update(
                    ((Target(name, None), (IMPORT,)), None) for name in loaded_by(node, self.module.package)
                )
            case ast.Global() | ast.Nonlocal():
                self.is_loud = True
            case ast.NamedExpr() | ast.Raise() if self.is_top:  # a failed import may have a fallback
                self.is_loud = True
        if isinstance(node, ast.Subscript):
            self._ask_end(node.value, ITEM)
        if type(node) in _OPERATIONS:
            made = [each.func for each in operands(node) if isinstance(each, ast.Call)]
            instances = [
                (target, (*chain, INSTANCE)) for each in made for target, chain in targets_of(self.module, each)
            ]
            self.asked.update(dict.fromkeys(instances))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Follow the decorators of a definition, and the making of a class."""
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if not is_accessor(called):
                self._call(called)
            if isinstance(decorator, ast.Call):
                self.factories.update(dict.fromkeys(targets_of(self.module, called)))
                for argument in (each for passed in decorator.args for each in passed_by(passed)):
                    self.passed.update(dict.fromkeys(targets_of(self.module, argument)))
        if isinstance(node, ast.ClassDef):
            if is_enum(node):
                self.instance(node, is_made=True)  # of its members
            for item in node.body:
                if isinstance(item, ast.Assign) and isinstance(item.value, ast.Name | ast.Attribute):
                    self.passed.update(dict.fromkeys(targets_of(self.module, item.value)))
            for base in node.bases:
                self._derive(base)
            for keyword in node.keywords:
                if keyword.arg == "metaclass":
                    self._call(keyword.value)

    def _change(self, target: ast.expr, *, is_grown: bool = False) -> None:
        """Follow a change of what a name, its attributes and items lead to; `x += y` may change x itself."""
        root, depth = target, int(is_grown)
        while isinstance(root, ast.Attribute | ast.Subscript):
            root, depth = root.value, depth + 1
        if not isinstance(root, ast.Name):
            self.is_loud = True
        elif root.id in self.local:
            self.is_loud |= not (depth == 0 or self._has_made(root.id, target, depth))
        elif self.is_top and root.id in self.module.definitions:
            self.changes = True
            self.is_loud |= not is_own(self.module, root.id, depth)
            self._ask(root)
        else:
            self.is_loud = True

    def _has_made(self, name: str, target: ast.expr, depth: int) -> bool:
        """Return whether the code itself has made the object that a change reaches below a local name."""
        if name == "self" and self.is_constructor:
            while isinstance(target, ast.Attribute | ast.Subscript) and not isinstance(target.value, ast.Name):
                target = target.value
            return depth == 1 or (depth == 2 and ast.unparse(target) in self.made)
        return depth == 1 and name in self.made

    def _ask(self, name: ast.Name) -> None:
        is_plain = name.id in plain_names(self.module) and name.id not in unsafe_names(self.module)
        if name.id not in self.local and not is_plain:
            self.asked.update(dict.fromkeys((target, ()) for target in self.module.targets(name.id)))

    def _ask_attribute(self, attribute: ast.Attribute) -> None:
        """Ask the object that is an attribute of an imported module."""
        base, chain = dotted(attribute)
        if base in self.module.imports and base not in self.local:
            self.asked.update(dict.fromkeys((target, chain) for target in self.module.imports[base]))

    def _ask_end(self, expression: ast.expr, end: str) -> None:
        self.asked.update(dict.fromkeys((to, (*chain, end)) for to, chain in targets_of(self.module, expression)))

    def _ask_types(self, annotation: ast.expr) -> None:
        """Ask the types of a field, which may be models, and the functions among their metadata."""
        for node in nodes_of(annotation):
            if isinstance(node, ast.Name | ast.Attribute):
                self._ask_end(node, TYPE)

    def _ask_items(self, values: ast.expr) -> None:
        """Ask the objects that an iteration makes."""
        for call in (node for node in nodes_of(values) if isinstance(node, ast.Call)):
            for made in (call.func, *call.args):
                if isinstance(made, ast.Name | ast.Attribute):
                    self._ask_end(made, INSTANCE)

    def _derive(self, base: ast.expr) -> None:
        """Follow the making of a class below `base`, which a hook of that base may see."""
        generic = base.value if isinstance(base, ast.Subscript) else base
        root = dotted(generic)[0]
        self.is_loud |= root in self.local or (root is None and not self._is_plain(base))
        self._ask_end(generic, BASE)

    def _arguments(self, call: ast.Call) -> None:
        """Follow the functions among the arguments of a call, which the called function may call."""
        name = [*dotted(call.func)[:1], *dotted(call.func)[1]][-1]
        self.is_loud |= any(keyword.arg == "out" for keyword in call.keywords)
        if name in _CLASS_MAKERS:
            for node in (node for each in (*call.args[1:], *call.keywords) for node in nodes_of(each)):
                if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                    self._derive(node)
        targets = targets_of(self.module, call.func)
        is_package = bool(targets) and all(is_pure(written(each)) and not keeps(written(each)) for each in targets)
        is_method = isinstance(call.func, ast.Attribute) and self._is_plain(call.func.value)
        if not is_package and (name not in CALLERS or (targets and not is_method)):
            return  # a function of the project is itself loud where it calls an argument
        keys = [keyword.value for keyword in call.keywords]
        places = 2 if name in ("sub", "subn") else 1
        functions = keys if is_package and name not in CALLERS else [*keys, *call.args[:places]]
        made = keys if name in ("max", "min", "sort", "sorted") else functions
        self.is_loud |= any(isinstance(each, _COMPUTED) and not is_data(self.module, each) for each in made)
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            for passed in passed_by(argument):
                root = dotted(passed)[0]
                if root in self.local:
                    self.is_loud |= root in self.inner_functions or (argument in functions and root not in self.plain)
                else:
                    self.passed.update(dict.fromkeys(targets_of(self.module, passed)))

    def _call(self, function: ast.expr, arguments: Sequence[ast.expr] = ()) -> None:
        """Follow a call; `arguments` are those that the function may change."""
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            self._call_method_of(function, root)
            return
        name, is_method = root.id, function is not root
        if name in self.local:
            is_read = isinstance(function, ast.Attribute) and function.attr in READERS and name in self.plain
            is_own_method = is_method and name in self.made and len(dotted(function)[1]) == 1
            is_kept = isinstance(function, ast.Attribute) and function.attr in GROWERS
            self.is_loud |= not (is_read or (is_own_method and (is_kept or not arguments)))
        elif isinstance(function, ast.Attribute) and name in plain_names(self.module):
            if function.attr not in READERS:
                self.changes = True
                is_kept = function.attr in GROWERS or not arguments
                self.is_loud |= not (self.is_top and is_kept and is_own(self.module, name, len(dotted(function)[1])))
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

    def _is_plain(self, value: ast.expr) -> bool:
        return is_plain_value(self.module, value, {*plain_names(self.module), *self.plain, *self.made})
