"""Summary of one source file: all that a closure needs of it, as plain data that a cache can keep."""

import ast
import builtins
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

from marin_dag.code.effects import LOUD, QUIET, Effects, Statement
from marin_dag.code.import_time import effects_of_use, statement_of
from marin_dag.code.messages import Messages, TextReads, messages_of, text_reads_of
from marin_dag.code.methods import CONSTRUCTORS, is_enum
from marin_dag.code.normal_form import documentation_of, dump
from marin_dag.code.objects import is_data, is_filled, plain_names
from marin_dag.code.reads import NOTHING, Reads, reads_of
from marin_dag.code.references import Alias, Aspect, Reference, Scanner, alias_of, named
from marin_dag.code.syntax import (
    Module,
    Target,
    bindings,
    dotted,
    imported,
    is_overload,
    loaded_by,
    nodes_of,
    parse_module,
)

EFFECTS = "<module>"
LOGGER = Target("<logger>", None)
"""The meaning of a name that the module binds to `logging.getLogger(...)`."""


class Scanned(NamedTuple):
    """A definition: its own hash, and what it reaches."""

    digest: str
    documentation: str
    """Hash of its docstrings; "" where it has none."""
    references: tuple[Reference, ...]
    loads: tuple[str, ...]
    """Modules that its own imports execute."""
    reads: Reads
    messages: Messages
    """Texts of messages, which are not in the digest."""
    variables: str
    """Hash of the names of local variables, which are not in the digest; "" if there are none."""
    text_reads: TextReads
    opaque: tuple[str, ...]
    guarded: tuple[str, ...] = ()
    """Modules whose import may fail while the definition goes on."""
    guarded_calls: tuple[Reference, ...] = ()
    """Functions inside which such an import may fail."""


UNSEEN = Scanned("", "", (), (), NOTHING, Messages(), "", TextReads(), ())


class Definition(NamedTuple):
    """A top-level name of a module."""

    scanned: tuple[Scanned, ...]
    """The value of the name and all it reaches, by aspect."""
    alias: tuple[Alias, ...] | None
    """The target of the name, where the module has only `name = other.thing`."""
    bases: tuple[Reference, ...]
    """Bases of the classes among the statements that bind the name."""
    has_hook: bool
    """Whether one of these classes runs code when it gets a subclass or a type argument, or a value grows when read."""
    is_class: bool
    is_callable: bool
    """Whether each of these statements is a class, or a class or function."""
    is_error: bool
    """Whether each is a class whose new instances only keep their arguments."""
    is_schema: bool
    """Whether such a class decides how a model reads or writes a value that is no instance of it."""
    is_plain: bool
    """Whether it is an object of Python's own."""
    effects: Effects
    """The effect of calling it, of making an instance, or of its value."""
    answers: Effects
    """The effect of the operators, indices and attributes of an instance."""
    methods: dict[str, Effects]
    """The effects of the methods of these classes."""
    fields: frozenset[str]
    """Fields and enum members of these classes whose values are data."""


class Executed(NamedTuple):
    """A statement that an import executes."""

    statement: Statement
    scanned: Scanned | None
    """The code of the statement and all it reaches; None if the statement is the definition of one name."""


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
    executed = [_executed(module, statement) for statement in module.executed]
    documentation = hashlib.sha256(ascii(module.documentation).encode()).hexdigest() if module.documentation else ""
    return Summary(
        name,
        path.name == "__init__.py",
        documentation,
        {defined: _definition(module, defined, statements) for defined, statements in module.definitions.items()},
        {bound: tuple(targets) for bound, targets in module.imports.items()},
        tuple(module.star_imports),
        tuple(dict.fromkeys(module.loads)),
        tuple(executed),
        _rebound(module, executed),
    )


def _definition(module: Module, name: str, statements: list[ast.stmt]) -> Definition:
    classes = [statement for statement in statements if isinstance(statement, ast.ClassDef)]
    alias = alias_of(module, name)
    values = [getattr(each, "value", None) for each in (*statements, *(item for made in classes for item in made.body))]
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return Definition(
        _by_aspect(module, name, statements),
        None if alias is None else tuple(alias),
        _bases(module, classes),
        any(map(_has_hook, classes)) or any(is_filled(module, value) for value in values),
        len(classes) == len(statements),
        all(isinstance(statement, kinds) for statement in statements),
        bool(classes) and len(classes) == len(statements) and all(map(_only_keeps, classes)),
        any(map(_is_schema, classes)),
        name in plain_names(module),
        effects_of_use(module, statements),
        effects_of_use(module, statements, of_instance=True) if classes else QUIET,
        {item.name: _effects_of_method(module, item) for made in classes for item in made.body if _is_method(item)},
        frozenset(name for made in classes for item in made.body for name in _fields(module, item)),
    )


def _is_method(item: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)


def _effects_of_method(module: Module, method: ast.FunctionDef | ast.AsyncFunctionDef) -> Effects:
    return LOUD if method.decorator_list else effects_of_use(module, [method])


def _fields(module: Module, item: ast.stmt) -> tuple[str, ...]:
    match item:
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is None or is_data(module, value):
            return (name,)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_data(module, value):
            return (name,)
    return ()


def _by_aspect(module: Module, name: str, statements: list[ast.stmt]) -> tuple[Scanned, ...]:
    match statements[0]:
        case ast.ClassDef():
            value, full = _scan(module, name, statements, Aspect.VALUE, Aspect.FULL)
            return UNSEEN, value, full
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            value, full = _scan(module, name, statements, Aspect.VALUE, Aspect.FULL)
            return full, value, full
    of_type, full = _scan(module, name, statements, Aspect.TYPE, Aspect.FULL)
    return of_type, full, full


def _bases(module: Module, classes: list[ast.ClassDef]) -> tuple[Reference, ...]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for made in classes for base in made.bases]
    found = [each for base in bases for each in named(module, base)]
    return tuple(Reference(target, chain, Aspect.FULL) for target, chain in found)


_HOOKS = ("__init_subclass__", "__class_getitem__", "__pydantic_init_subclass__", "__subclasshook__")


def _has_hook(made: ast.ClassDef) -> bool:
    is_noted = is_enum(made) and any(getattr(item, "name", "") in CONSTRUCTORS for item in made.body)
    return (
        is_noted
        or any(keyword.arg == "metaclass" for keyword in made.keywords)
        or any(getattr(item, "name", "") in _HOOKS for item in made.body)
    )


def _is_schema(made: ast.ClassDef) -> bool:
    return any(
        dotted(base)[1][-1:] == ("TypedDict",) or dotted(base) == ("TypedDict", ()) for base in made.bases
    ) or any(
        getattr(item, "name", "") in ("__get_pydantic_core_schema__", "__get_pydantic_json_schema__")
        for item in made.body
    )


def _only_keeps(made: ast.ClassDef) -> bool:
    """Return whether the methods that make an instance of an exception only keep their arguments."""
    if made.keywords or made.decorator_list:
        return False
    for item in made.body:
        match item:
            case ast.FunctionDef(name="__init__", decorator_list=[]):
                if not all(map(_keeps_argument, item.body)):
                    return False
            case _:
                is_setter = any(getattr(each, "attr", "") == "setter" for each in getattr(item, "decorator_list", ()))
                if is_setter or not _MAKERS.isdisjoint(bindings([item]).names):
                    return False
    return True


_MAKERS = frozenset(
    {"__init__", "__new__", "__init_subclass__", "__setattr__", "__getattribute__", "__del__", "__set_name__"}
)


def _keeps_argument(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))), args=args)):
            return not any(isinstance(node, ast.Call) for each in args for node in ast.walk(each))
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))], value=value):
            return not any(isinstance(node, ast.Call) for node in ast.walk(value))
    return False


def _executed(module: Module, statement: ast.stmt) -> Executed:
    found = statement_of(module, statement)
    return Executed(found, _scanned(module, statement, found))


def _scanned(module: Module, statement: ast.stmt, found: Statement) -> Scanned | None:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        names = [f"{name}={target}" for name, target in imported(statement, module.package)]
        loads = tuple(loaded_by(statement, module.package))
        return UNSEEN._replace(digest="import " + ",".join(names), loads=loads)
    if len(found.binds) == 1 and module.definitions[found.binds[0]] == [statement]:
        return None
    (scanned,) = _scan(module, EFFECTS, [statement], Aspect.FULL)
    return scanned


def _rebound(module: Module, executed: list[Executed]) -> frozenset[str]:
    """Return the names that several statements bind; a star import below a definition may bind each name."""
    bound: dict[str, list[bool]] = {}
    for statement, each in zip(module.executed, executed, strict=True):
        if "*" in each.statement.binds and bound:
            return frozenset({*module.definitions, "*"})
        if not is_overload(statement):
            for name in each.statement.binds:
                bound.setdefault(name, []).append(each.statement.is_import)
    return frozenset(name for name, imports in bound.items() if len(imports) > 1 and not all(imports))


def _scan(module: Module, name: str, statements: list[ast.stmt], *aspects: Aspect) -> list[Scanned]:
    """Return what `name` of `module` is and reaches, for each of some aspects."""
    scanners = [Scanner(module, aspect) for aspect in aspects]
    prepared = [scanners[0].prepared(statement) for statement in statements]
    meaning = functools.partial(_meaning, module)
    messages = [messages_of(statement, meaning) for statement in prepared]
    body, variables = dump(
        prepared,
        module.imports,
        defined=module.definitions,
        star_imports=module.star_imports,
        messages=set().union(*(nodes for _, nodes in messages)),
    )
    if module.keeps_annotations_as_text and any(map(_has_annotation, prepared)):
        body += "annotations as text"
    common = Scanned(
        hashlib.sha256(body.encode("ascii")).hexdigest(),
        _hash_of_texts(documentation_of(prepared)),
        (),
        (),
        reads_of(prepared, scanners[0].dotted_meanings),
        Messages(
            tuple(text for found, _ in messages for text in found.logged),
            tuple(raised for found, _ in messages for raised in found.raised),
        ),
        _hash_of_texts(variables),
        text_reads_of(prepared, meaning),
        tuple(f"{module.name}.{name}: {what}" for each in prepared for what in _line_numbers(each)),
    )
    is_alias = alias_of(module, name) is not None  # what an alias stands for depends on what is asked of it
    followed = [_followed(common, scanner, name, prepared) for scanner in scanners]
    return [common._replace(opaque=each.opaque) for each in followed] if is_alias else followed


def _followed(common: Scanned, scanner: Scanner, name: str, prepared: list[ast.stmt]) -> Scanned:
    for statement in prepared:
        scanner.statement(statement)
    return common._replace(
        references=tuple(dict.fromkeys(scanner.references)),
        loads=tuple(dict.fromkeys(scanner.loads)),
        guarded=tuple(dict.fromkeys(scanner.guarded)),
        guarded_calls=tuple(dict.fromkeys(scanner.guarded_calls)),
        opaque=(*common.opaque, *(f"{scanner.module.name}.{name}: {what}" for what in scanner.opaque)),
    )


def _line_numbers(statement: ast.stmt) -> Iterator[str]:
    """Yield the texts that make a log show line numbers."""
    texts = (node.value for node in nodes_of(statement) if type(node) is ast.Constant and type(node.value) is str)
    yield from (f"{text!r}: line numbers of code" for text in texts if "%(lineno)" in text or "{lineno" in text)


def _has_annotation(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.AnnAssign) or getattr(node, "annotation", None) or getattr(node, "returns", None)
        for node in nodes_of(statement)
    )


def _hash_of_texts(texts: Sequence[str]) -> str:
    return hashlib.sha256(ascii(list(texts)).encode()).hexdigest() if texts else ""


def _meaning(module: Module, node: ast.expr) -> tuple[Target, ...]:
    """Return what a dotted name of the module stands for; () for another expression or a local variable."""
    base, chain = dotted(node)
    if base is None:
        return ()
    targets = module.targets(base)
    if not targets or not all(target.is_certain for target in targets):
        return (Target("builtins", base),) if not targets and hasattr(builtins, base) and not chain else ()
    if not chain:
        return (LOGGER,) if _is_logger(module, base) else tuple(targets)
    return tuple(Target(".".join([str(target).replace(":", "."), *chain[:-1]]), chain[-1]) for target in targets)


def _is_logger(module: Module, name: str) -> bool:
    match module.definitions.get(name):
        case [ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Attribute(value=base, attr="getLogger")))]:
            return isinstance(base, ast.Name) and module.imports.get(base.id) == [Target("logging", None)]
    return False
