"""References of a definition: what it reaches, name by name, with Python's own scoping."""

import ast
import contextlib
import enum
import re
from collections.abc import Iterator
from typing import NamedTuple

from marin_dag.code.guards import catches_imports, guarded_by
from marin_dag.code.normal_form import readable
from marin_dag.code.opaque import OPAQUE_ATTRIBUTES, OPAQUE_NAMES, OPAQUE_VALUES, PASSED_ON, opaque_call, opaque_in
from marin_dag.code.syntax import (
    Module,
    Target,
    absolute,
    arguments_of,
    bindings_of,
    children,
    dotted,
    imported,
    loaded_by,
    nodes_of,
    parameters,
    replaced,
    without_config_type,
)

_ENGINE = "marin_dag"
_WORD = re.compile(r"\w+")
_MARKERS = (".Runtime", ".StopAt")

_LITERAL = frozenset({"typing.Literal", "typing_extensions.Literal"})
_ANNOTATED = frozenset({"typing.Annotated", "typing_extensions.Annotated"})
NAMESPACES = ("__dict__", "__annotations__")
"""Attributes of a module that hold names in the order of its statements."""
_READERS_OF_MODULES = frozenset({
    "dir", "getattr", "inspect.get_annotations", "inspect.getmembers", "inspect.getmembers_static",
    "typing.get_type_hints", "vars",
})  # fmt: skip
"""Functions that return such an attribute."""
_MAKERS_OF_TYPES = frozenset({
    "dataclasses.make_dataclass", "pydantic.create_model", "pydantic.TypeAdapter", "typing.ForwardRef",
    "typing.NamedTuple", "typing.TypedDict",
})  # fmt: skip
"""Functions that evaluate the types that texts among their arguments spell."""

_FOLLOWED = frozenset({
    ast.AnnAssign, ast.AsyncFunctionDef, ast.AsyncWith, ast.Attribute, ast.Call, ast.ClassDef, ast.DictComp,
    ast.FunctionDef, ast.GeneratorExp, ast.Lambda, ast.ListComp, ast.Name, ast.SetComp, ast.Subscript, ast.Try,
    ast.TryStar, ast.With,
})  # fmt: skip
"""Kinds of nodes that mean more than their children."""


class Aspect(enum.IntEnum):
    """The part of a definition that counts where it is reached."""

    TYPE = 0
    """The annotation of a field whose value is known: functions in `Annotated` count, and no class."""
    VALUE = 1
    """A config holds an instance: the class counts whole, and nothing follows from the types of its fields. In a step
    function nothing follows from the annotation of its config."""
    FULL = 2
    """Code or an annotation names the definition."""


class Reference(NamedTuple):
    """A name as one definition uses it, with the attributes behind it."""

    target: Target
    chain: tuple[str, ...]
    aspect: Aspect


Alias = tuple[Target, tuple[str, ...]]
"""The meaning of a name: a target, and the attributes behind it."""


def source_text(module: Module, statements: list[ast.stmt], aspect: Aspect) -> str:
    """Return what `scan` hashes, as source that people can compare."""
    scanner = Scanner(module, aspect)
    return readable([scanner.prepared(statement) for statement in statements], module.imports)


def alias_of(module: Module, name: str) -> list[Alias] | None:
    """Return what `name` stands for where the module has only `name = other.thing`; else None."""
    found: list[Alias] = []
    for statement in module.definitions.get(name, ()):
        match statement:
            case ast.Assign(targets=[ast.Name()], value=ast.Name() | ast.Attribute() as value):
                base, chain = dotted(value)
                if base is None:
                    return None
                found.extend((target, chain) for target in Scanner(module, Aspect.FULL).targets(base))
            case _:
                return None
    return found or None


def named(module: Module, expression: ast.expr) -> list[Alias]:
    """Return what a dotted name at the top level of a module may mean; [] for another expression or a builtin."""
    base, chain = dotted(expression)
    return [] if base is None else [(target, chain) for target in Scanner(module, Aspect.FULL).targets(base)]


class Scanner:
    """Follows the names of one definition."""

    def __init__(self, module: Module, aspect: Aspect) -> None:
        self.module = module
        self.aspect = aspect
        self.references: list[Reference] = []
        self.loads: list[str] = []
        self.opaque: list[str] = []
        self.scopes: list[dict[str, list[Target]]] = []
        self.guarded: list[str] = []
        """Modules whose import may fail while the code goes on."""
        self.guarded_calls: list[Reference] = []
        """Functions that are called where the import of a module inside them may fail while the code goes on."""
        self._called: set[int] = set()
        self._in_class = False

    def prepared(self, statement: ast.stmt) -> ast.stmt:
        """Return the statement without what is the engine's or data: its `@step`, the fields of a value's class."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kept = [item for item in statement.decorator_list if not self._is_engine(item)]
            return replaced(statement, decorator_list=kept)
        if isinstance(statement, ast.ClassDef):
            return replaced(statement, body=[item for item in statement.body if not self._is_execution(item)])
        return statement

    def _is_execution(self, item: ast.stmt) -> bool:
        """Return whether a field is declared not to count, or not to count at the value that it had before."""
        if not isinstance(item, ast.AnnAssign):
            return False
        if (before := self._value_before(item)) is not None:
            field = item.value.keywords if isinstance(item.value, ast.Call) else []
            default = next((each.value for each in field if each.arg == "default"), item.value)
            return default is not None and ast.dump(default) == ast.dump(before)
        markers = [node for node in ast.walk(item.annotation) if isinstance(node, ast.Name | ast.Attribute)]
        meant = [name for node in markers for name in self._full_names(*dotted(node))]
        return any(name.startswith(f"{_ENGINE}.") and name.endswith(_MARKERS) for name in meant)

    def _value_before(self, field: ast.AnnAssign) -> ast.expr | None:
        """Return the value of an added field that means "as before"."""
        for node in ast.walk(field.annotation):
            if isinstance(node, ast.Call) and any(
                name.startswith(f"{_ENGINE}.") and name.endswith(".Added")
                for name in self._full_names(*dotted(node.func))
            ):
                values = [*node.args, *(each.value for each in node.keywords)]
                return values[0] if values else None
        return None

    def _is_engine(self, decorator: ast.expr) -> bool:
        base, _ = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        return any(target.module.partition(".")[0] == _ENGINE for target in self.module.imports.get(base or "", ()))

    def statement(self, statement: ast.stmt) -> None:
        """Follow one top-level statement, as far as the aspect asks."""
        if isinstance(statement, ast.ClassDef):
            self._class(statement, self.aspect)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            # `Schedule = Constant | Linear` reached by an annotation passes on that it was only an annotation.
            (self._annotation if self.aspect is Aspect.TYPE else self._visit)(statement.value, self.aspect)
            self._visit_rest(statement)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and self.aspect is Aspect.VALUE:
            self._visit(without_config_type(statement), Aspect.FULL)
        else:
            self._visit(statement, Aspect.FULL)

    def _visit_rest(self, statement: ast.Assign | ast.AnnAssign) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                self._visit(target, Aspect.FULL)
        if isinstance(statement, ast.AnnAssign):
            self._annotation(statement.annotation)

    def _visit(self, node: ast.AST | None, aspect: Aspect) -> None:
        if node is None:
            return
        if type(node) not in _FOLLOWED:  # most of them, so that `match` tries few
            self._children(node, aspect)
            return
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    self._visit(decorator, Aspect.FULL)
                self._signature(node.args)
                self._annotation(node.returns)
                self._in_scope(node)
            case ast.Lambda():
                self._signature(node.args)
                self._in_scope(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node)
            case ast.ClassDef():
                self._class(node, Aspect.FULL)
            case ast.AnnAssign():
                self._visit(node.target, Aspect.FULL)
                # The annotation of a local variable is never evaluated.
                self._annotation(node.annotation, aspect)
                self._visit(node.value, Aspect.FULL)
            case ast.Attribute() | ast.Name():
                self._chain(node, aspect)
            case ast.Try() | ast.TryStar() | ast.With() | ast.AsyncWith():
                self.guarded += guarded_by(node, self.module, lambda each: self._full_names(*dotted(each)))
                self.guarded_calls += self._calls_in(node.body) if catches_imports(node) else ()
                self._children(node, aspect)
            case ast.Call():
                self._called.add(id(node.func))
                self._note_opaque_call(node)
                self._children(node, aspect)
                if not _MAKERS_OF_TYPES.isdisjoint(self._full_names(*dotted(node.func))):
                    self._quoted_types([*node.args, *(keyword.value for keyword in node.keywords)])
            case ast.Subscript(slice=inner):
                self._children(node, aspect)
                self._quoted_types([inner])

    def _calls_in(self, body: list[ast.stmt]) -> Iterator[Reference]:
        for node in (each for statement in body for each in nodes_of(statement) if isinstance(each, ast.Call)):
            base, chain = dotted(node.func)
            for target in [] if base is None else self.targets(base):
                yield Reference(target, chain, Aspect.FULL)

    def _children(self, node: ast.AST, aspect: Aspect) -> None:
        for child in children(node):
            self._visit(child, aspect)

    def _annotation(self, node: ast.expr | None, aspect: Aspect = Aspect.FULL) -> None:
        """Follow a type, whose quoted parts a model or `get_type_hints` evaluates like the others.

        The strings of `Literal` are values, and those behind the type in `Annotated` are texts: no code, whatever they
        spell. Nor is a string that spells a function, as the name of an axis of an array may.
        """
        match node:
            case ast.Constant(value=str(text)):
                with contextlib.suppress(SyntaxError, ValueError):  # a text that is no type
                    quoted = ast.parse(text, mode="eval").body
                    if not self._is_function(quoted):
                        self._annotation(quoted, aspect)
            case ast.Subscript(value=generic, slice=inner):
                self._annotation(generic, aspect)
                base, chain = dotted(generic)
                names = [] if base is None else self._full_names(base, chain)
                if any(name in _LITERAL for name in names):
                    return
                items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                first_alone = any(name in _ANNOTATED for name in names)
                for index, item in enumerate(items):
                    if index and first_alone:
                        self._visit(item, Aspect.FULL)
                    else:
                        self._annotation(item, aspect)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.BoolOp(values=items):
                for item in items:
                    self._annotation(item, aspect)
            case ast.BinOp(left=left, right=right):
                self._annotation(left, aspect)
                self._annotation(right, aspect)
            case ast.IfExp(body=first, orelse=second):
                self._visit(node.test, aspect)
                self._annotation(first, aspect)
                self._annotation(second, aspect)
            case ast.Call(args=[ast.Constant() as quoted, *_]):  # ForwardRef("Inner")
                self._visit(node, aspect)
                self._annotation(quoted, aspect)
            case _:
                self._visit(node, aspect)

    def _quoted_types(self, expressions: list[ast.expr]) -> None:
        """Follow texts that spell a type of the module, as in `list["Row"]` outside annotations."""
        nodes = [node for expression in expressions for node in ast.walk(expression)]
        for text in (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)):
            if not self.module.definitions.keys().isdisjoint(_WORD.findall(str(text.value))):
                self._annotation(text)

    def _is_function(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Name) or node.id in self.module.imports:
            return False
        found = self.module.definitions.get(node.id, ())
        return bool(found) and all(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in found)

    def _signature(self, arguments: ast.arguments) -> None:
        for argument in arguments_of(arguments):
            self._annotation(argument.annotation)
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            self._visit(default, Aspect.FULL)

    def _class(self, node: ast.ClassDef, aspect: Aspect) -> None:
        for base in node.bases:
            self._visit(base, aspect)
        for expression in [*node.decorator_list, *(keyword.value for keyword in node.keywords)]:
            self._visit(expression, Aspect.FULL)
        # No scope of its own: names of a class body are not seen inside its methods, so nothing is hidden there.
        for statement in node.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):  # an attribute of the class
                self.loads.extend(loaded_by(statement, self.module.package))
                for _, target in imported(statement, self.module.package):
                    self.references.append(Reference(target, (), Aspect.FULL))
            is_known = aspect is Aspect.VALUE and isinstance(statement, ast.AnnAssign)
            self._in_class = True
            self._visit(statement, Aspect.TYPE if is_known else Aspect.FULL)
            self._in_class = False

    def _in_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        bound = bindings_of(node)
        names = {*parameters(node.args), *bound.names}.difference(bound.nonlocals)
        scope: dict[str, list[Target]] = {name: [] for name in names}
        scope.update((name, self.module.targets(name)) for name in bound.globals)
        for statement in bound.imports:
            self.loads.extend(loaded_by(statement, self.module.package))
            for name, target in imported(statement, self.module.package):
                scope.setdefault(name, []).append(target)
        self.scopes.append(scope)
        body: list[ast.expr] | list[ast.stmt] = [node.body] if isinstance(node, ast.Lambda) else node.body
        for inner in body:
            self._visit(inner, Aspect.FULL)
        self.scopes.pop()

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self._visit(node.generators[0].iter, Aspect.FULL)  # evaluated outside
        names = [n.id for generator in node.generators for n in ast.walk(generator.target) if isinstance(n, ast.Name)]
        self.scopes.append({name: [] for name in names})
        for index, generator in enumerate(node.generators):
            if index:
                self._visit(generator.iter, Aspect.FULL)
            for condition in generator.ifs:
                self._visit(condition, Aspect.FULL)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for element in elements:
            self._visit(element, Aspect.FULL)
        self.scopes.pop()

    def _chain(self, node: ast.Attribute | ast.Name, aspect: Aspect) -> None:
        base, chain = dotted(node)
        if base is None:
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                inner = inner.value
            self._visit(inner, aspect)
        else:
            targets = self.targets(base)
            if id(node) not in self._called:
                self.opaque.extend(f"{name}, passed on" for name in self._full_names(base, chain) if name in PASSED_ON)
            if targets or base in (*OPAQUE_NAMES, *OPAQUE_VALUES):
                self.opaque.extend(what for name in self._full_names(base, chain) for what in opaque_in(name))
            self.references.extend(Reference(target, chain, aspect) for target in targets)
        if chain and chain[-1] in OPAQUE_ATTRIBUTES:
            self.opaque.append(f"{ast.unparse(node)}: {OPAQUE_ATTRIBUTES[chain[-1]]}")

    def targets(self, name: str) -> list[Target]:
        """Return what a name may mean here; [] for a local variable."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return self.module.targets(name)

    def dotted_meanings(self, name: str) -> list[str]:
        return [str(target).replace(":", ".") for target in self.module.imports.get(name, ())]

    def _full_names(self, base: str | None, chain: tuple[str, ...]) -> list[str]:
        """Return the dotted names with imports resolved; a builtin stays as it is, a local variable has none."""
        if base is None or any(base in scope and not scope[base] for scope in self.scopes):
            return []
        certain = [target for target in self.targets(base) if target.is_certain]
        roots = [str(target).replace(":", ".").removeprefix("builtins.") for target in certain] or [base]
        return [".".join([root, *chain]) for root in roots]

    def _note_opaque_call(self, call: ast.Call) -> None:
        base, chain = dotted(call.func)
        names = [] if base is None else self._full_names(base, chain)
        is_module_level = not (self.scopes or self._in_class)
        self.opaque.extend(opaque_call(call, names, is_module_level=is_module_level))
        is_attribute = "getattr" in names and ast.unparse(call.args[-1]).strip("'") not in NAMESPACES
        if not is_attribute and not _READERS_OF_MODULES.isdisjoint(names):
            for owner, path in (dotted(argument) for argument in call.args):
                targets = [] if owner is None else self.targets(owner)
                self.references += [Reference(each, (*path, NAMESPACES[0]), Aspect.FULL) for each in targets]
        if "importlib.import_module" in names:
            name = self._imported_by(call)
            if name is None:
                self.opaque.append(ast.unparse(call))
            else:
                self.loads.append(name)
                self.references.append(Reference(Target(name, None), (), Aspect.FULL))

    def _imported_by(self, call: ast.Call) -> str | None:
        match call.args:
            case [ast.Constant(value=str(name))] if not name.startswith("."):
                return name
            case [ast.Constant(value=str(name)), ast.Name(id="__package__")]:
                stripped = name.lstrip(".")
                return absolute(stripped, len(name) - len(stripped), self.module.package)
        return None
