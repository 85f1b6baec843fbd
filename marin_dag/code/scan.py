"""Scan of one definition: its hash, and everything that it reaches, reads and says."""

import ast
import builtins
import functools
import hashlib
from typing import NamedTuple

from marin_dag.code.messages import Hears, Message, hears_of, without_messages
from marin_dag.code.normal_form import documentation_of, dump
from marin_dag.code.reads import Reads, reads_of
from marin_dag.code.references import Aspect, Reference, Scanner, alias_of
from marin_dag.code.syntax import Module, Target, dotted, nodes_of

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
    messages: tuple[Message, ...]
    """Texts of messages, which are not in the digest."""
    hears: Hears
    opaque: tuple[str, ...]


def scan(module: Module, name: str, statements: list[ast.stmt], *aspects: Aspect) -> list[Scanned]:
    """Return what `name` of `module` is and reaches, for each of some aspects."""
    scanners = [Scanner(module, aspect) for aspect in aspects]
    prepared = [scanners[0].prepared(statement) for statement in statements]
    meaning = functools.partial(_meaning, module)
    stripped = [without_messages(statement, meaning) for statement in prepared]
    body = dump(
        [statement for statement, _ in stripped],
        module.imports,
        package=module.package,
        defined=module.definitions,
        star_imports=module.star_imports,
    )
    if module.keeps_annotations_as_text and any(map(_has_annotation, prepared)):
        body += "annotations as text"
    common = Scanned(
        hashlib.sha256(body.encode("ascii")).hexdigest(),
        _hash_of_texts(documentation_of(prepared)),
        (),
        (),
        reads_of(prepared, scanners[0].dotted_meanings),
        tuple(message for _, messages in stripped for message in messages),
        hears_of(prepared, meaning),
        (),
    )
    is_alias = alias_of(module, name) is not None  # what an alias stands for depends on what is asked of it
    return [common if is_alias else _followed(common, scanner, name, prepared) for scanner in scanners]


def _followed(common: Scanned, scanner: Scanner, name: str, prepared: list[ast.stmt]) -> Scanned:
    for statement in prepared:
        scanner.statement(statement)
    return common._replace(
        references=tuple(dict.fromkeys(scanner.references)),
        loads=tuple(dict.fromkeys(scanner.loads)),
        opaque=tuple(f"{scanner.module.name}.{name}: {what}" for what in scanner.opaque),
    )


def _has_annotation(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.AnnAssign) or getattr(node, "annotation", None) or getattr(node, "returns", None)
        for node in nodes_of(statement)
    )


def _hash_of_texts(texts: list[str]) -> str:
    return hashlib.sha256(ascii(texts).encode()).hexdigest() if texts else ""


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
