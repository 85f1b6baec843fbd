"""References: what a definition reaches, name by name, with Python's own scoping."""

import ast
import enum
import hashlib
from typing import NamedTuple

from marin_dag.syntax import Module, Target, bindings, children, dump, imported, without_idle

_ENGINE = "marin_dag"


class Aspect(enum.IntEnum):
    """How much of a class counts where it is reached."""

    VALUE = 0
    """A config holds an instance: its fields are in the config's document, its methods are code. For a step function:
    its config is known by value, so that nothing follows from the annotation."""
    INTERFACE = 1
    """An annotation names it: methods are code, here and in the classes of its fields."""
    FULL = 2
    """Code names it: fields, defaults and types count as well."""


class Reference(NamedTuple):
    """A name as one definition uses it: module-level in `module`, or whatever the import `target` leads to."""

    target: Target
    chain: tuple[str, ...]
    aspect: Aspect


class Scanned(NamedTuple):
    """One definition: its hash without what it reaches, and what it reaches."""

    digest: str
    references: tuple[Reference, ...]
    opaque: tuple[str, ...]


def scan(module: Module, name: str, statements: list[ast.stmt], aspect: Aspect) -> Scanned:
    """What `name` of `module` is and reaches."""
    scanner = _Scanner(module, aspect)
    prepared = [scanner.prepared(statement) for statement in statements]
    for statement in prepared:
        scanner.statement(statement)
    body = "\n".join([*(dump(statement) for statement in prepared), *sorted(scanner.bindings)])
    return Scanned(
        hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest(),
        tuple(dict.fromkeys(scanner.references)),
        tuple(f"{module.name}.{name}: {what}" for what in scanner.opaque),
    )


def source_text(module: Module, statements: list[ast.stmt], aspect: Aspect) -> str:
    """What `scan` hashes, as source: no comments, docstrings, layout or engine; imported names with what they mean."""
    scanner = _Scanner(module, aspect)
    prepared = [scanner.prepared(statement) for statement in statements]
    for statement in prepared:
        scanner.statement(statement)
    bindings = "".join(f"# {binding}\n" for binding in sorted(scanner.bindings))
    return bindings + "\n\n".join(ast.unparse(without_idle(statement)) for statement in prepared)


class _Scanner:
    def __init__(self, module: Module, aspect: Aspect) -> None:
        self.module = module
        self.aspect = aspect
        self.references: list[Reference] = []
        self.bindings: set[str] = set()
        """`name = module:attribute` for each imported name used: `f` of one package is not `f` of another."""
        self.opaque: list[str] = []
        self.scopes: list[dict[str, list[Target]]] = []

    def prepared(self, statement: ast.stmt) -> ast.stmt:
        """The statement without what is the engine's, or is data: its `@step`, the fields of a value's class."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kept = [item for item in statement.decorator_list if not self._is_engine(item)]
            return _with(statement, decorator_list=kept)
        if isinstance(statement, ast.ClassDef) and self.aspect is not Aspect.FULL:
            return _with(statement, body=[item for item in statement.body if not _is_field(item)])
        return statement

    def _is_engine(self, decorator: ast.expr) -> bool:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        while isinstance(node, ast.Attribute):
            node = node.value
        targets = self.module.imports.get(node.id, []) if isinstance(node, ast.Name) else []
        return any(target.module.split(".")[0] == _ENGINE for target in targets)

    def statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.ClassDef):
            self._class(statement, self.aspect)
            if self.aspect is Aspect.INTERFACE:
                self._fields_of(statement)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            # `Schedule = Constant | Linear` reached by an annotation passes on that it was only an annotation.
            self._visit(statement.value, self.aspect)
            self._visit_rest(statement)
        elif isinstance(statement, ast.FunctionDef) and self.aspect is Aspect.VALUE:
            parameter = statement.args.args[0]
            bare = ast.copy_location(ast.arg(parameter.arg), parameter)
            arguments = ast.arguments(**{**vars(statement.args), "args": [bare, *statement.args.args[1:]]})
            self._visit(_with(statement, args=arguments), Aspect.FULL)
        else:
            self._visit(statement, Aspect.FULL)

    def _fields_of(self, statement: ast.ClassDef) -> None:
        (original,) = [item for item in self.module.definitions[statement.name] if isinstance(item, ast.ClassDef)][-1:]
        for item in original.body:
            if isinstance(item, ast.AnnAssign) and not ast.unparse(item.annotation).startswith("Runtime["):
                self._visit(item.annotation, Aspect.INTERFACE)

    def _visit_rest(self, statement: ast.Assign | ast.AnnAssign) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            self._visit(target, Aspect.FULL)
        if isinstance(statement, ast.AnnAssign):
            self._visit(statement.annotation, Aspect.INTERFACE)

    def _visit(self, node: ast.AST | None, aspect: Aspect) -> None:
        match node:
            case None:
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    self._visit(decorator, Aspect.FULL)
                self._signature(node.args)
                self._visit(node.returns, Aspect.INTERFACE)
                self._in_scope(_parameters(node.args), node.body)
            case ast.Lambda():
                self._signature(node.args)
                self._in_scope(_parameters(node.args), [node.body])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node)
            case ast.ClassDef():
                self._class(node, Aspect.FULL)
            case ast.AnnAssign():
                self._visit(node.target, Aspect.FULL)
                self._visit(node.annotation, aspect)
                self._visit(node.value, Aspect.FULL)
            case ast.Attribute() | ast.Name():
                self._chain(node, aspect)
            case ast.Call():
                self._refuse_to_guess(node)
                self._children(node, aspect)
            case _:
                self._children(node, aspect)

    def _children(self, node: ast.AST, aspect: Aspect) -> None:
        for child in children(node):
            self._visit(child, aspect)

    def _signature(self, arguments: ast.arguments) -> None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in every:
            if argument is not None:
                self._visit(argument.annotation, Aspect.INTERFACE)
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            self._visit(default, Aspect.FULL)

    def _class(self, node: ast.ClassDef, aspect: Aspect) -> None:
        for base in node.bases:
            self._visit(base, aspect)
        for expression in [*node.decorator_list, *(keyword.value for keyword in node.keywords)]:
            self._visit(expression, Aspect.FULL)
        # No scope of its own: names of a class body are not seen inside its methods, so nothing is hidden there.
        for statement in node.body:
            self._visit(statement, Aspect.FULL)

    def _in_scope(self, parameters: list[str], body: list[ast.stmt] | list[ast.expr]) -> None:
        bound = bindings(body)
        scope: dict[str, list[Target]] = {name: [] for name in [*parameters, *bound.names] if name not in bound.outer}
        for node in bound.imports:
            for name, target in imported(node, self.module.package):
                scope.setdefault(name, []).append(target)
        unused = {name for name, targets in scope.items() if targets}
        used_before = len(self.references)
        self.scopes.append(scope)
        for statement in body:
            self._visit(statement, Aspect.FULL)
        self.scopes.pop()
        used = {reference.target for reference in self.references[used_before:]}
        for name in sorted(unused):
            for target in scope[name]:
                if target not in used:  # imported for what the import does
                    self._refer(Reference(target, (), Aspect.FULL), f"import {target}")

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
        chain: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            chain.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            self._visit(base, aspect)
            return
        attributes = tuple(reversed(chain))
        for target in self._targets(base.id):
            self._refer(Reference(target, attributes, aspect), f"{base.id} = {target}")

    def _targets(self, name: str) -> list[Target]:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name in self.module.definitions:
            return [Target(self.module.name, name), *self.module.imports.get(name, [])]
        if name in self.module.imports:
            return self.module.imports[name]
        return [Target(module, name, is_certain=False) for module in self.module.star_imports]

    def _refer(self, reference: Reference, binding: str) -> None:
        self.references.append(reference)
        if reference.target.module != self.module.name and reference.target.is_certain:
            self.bindings.add(binding)

    def _refuse_to_guess(self, call: ast.Call) -> None:
        called = ast.unparse(call.func)
        first = call.args[0] if call.args else None
        if called in ("eval", "exec", "__import__", "globals"):
            self.opaque.append(f"{called}(...)")
        elif called in ("importlib.import_module", "import_module"):
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self._refer(Reference(Target(first.value, None), (), Aspect.FULL), f"import {first.value}")
            else:
                self.opaque.append(ast.unparse(call))
        elif isinstance(call.func, ast.Call) and ast.unparse(call.func.func) == "getattr":
            attribute = call.func.args[1] if len(call.func.args) > 1 else None
            if not isinstance(attribute, ast.Constant):
                self.opaque.append(ast.unparse(call.func))


def _is_field(item: ast.stmt) -> bool:
    """Whether a statement of a class body declares data. A `ClassVar` or a private attribute is in no document."""
    if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
        return False
    return not item.target.id.startswith("_") and "ClassVar" not in ast.unparse(item.annotation)


def _parameters(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [argument.arg for argument in every if argument is not None]


def _with(node: ast.stmt, **fields: object) -> ast.stmt:
    copy = type(node)(**{name: getattr(node, name) for name in node._fields if hasattr(node, name)})
    for name, value in fields.items():
        setattr(copy, name, value)
    return ast.copy_location(copy, node)
