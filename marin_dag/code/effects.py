"""Effects: what running code may change, and which methods of a class run implicitly, judged from one module."""

import ast
from typing import NamedTuple

from marin_dag.code.syntax import Module, Target, dotted

Called = tuple[Target, tuple[str, ...]]
"""A dotted name: the target of its first part, and the attributes after that part."""
MADE = "()"
"""Last part of a dotted name that stands for the result of a call."""
CONSTRUCTORS = frozenset({"__init__", "__post_init__", "__check_init__"})
_OF_MEMBERS = frozenset({"__init__", "__new__", "_generate_next_value_", "_missing_", "__set_name__"})
_HOOKS = frozenset({
    "__class_getitem__", "__get_pydantic_core_schema__", "__get_pydantic_json_schema__", "__init_subclass__",
    "__pydantic_init_subclass__", "__subclasshook__",
})  # fmt: skip
"""Methods that run when a statement uses their class as a base, with an index, or as a field's type."""


class Effects(NamedTuple):
    """Effects of a statement; the definitions of the names in the fields decide whether there are more."""

    is_loud: bool = False
    called: tuple[Called, ...] = ()
    bases: tuple[Called, ...] = ()
    imported: tuple[Called, ...] = ()
    held: tuple[Called, ...] = ()
    """Names that are only read."""
    operands: tuple[Called, ...] = ()
    """Names whose objects are operands of an operator, an index or a format."""
    used: tuple[Called, ...] = ()
    """Names passed to a function, which may call them or their methods."""
    has_lambda: bool = False


QUIET = Effects()


class Statement(NamedTuple):
    """A top-level statement."""

    binds: tuple[str, ...]
    reads: tuple[str, ...]
    """Names whose values the statement reads."""
    changes: bool
    """Whether the statement changes an object of its own module only."""
    computes: bool
    """Whether the value may depend on changes by other statements."""
    effects: Effects
    is_import: bool


def has_hook(made: ast.ClassDef) -> bool:
    """Return whether a class runs code when another statement uses it as a base, with an index, or as a type."""
    names = {item.name for item in made.body if isinstance(item, (ast.FunctionDef | ast.AsyncFunctionDef))}
    return makes_members(made, names) or not _HOOKS.isdisjoint(names) or _has_metaclass(made)


def has_operators(made: ast.ClassDef) -> bool:
    """Return whether a class defines operators, indexing or attribute access of its instances."""
    return any(
        item.name == "keys" or (item.name.endswith("_") and item.name not in CONSTRUCTORS)
        for item in made.body
        if isinstance(item, (ast.FunctionDef | ast.AsyncFunctionDef))
    )


def written(called: Called) -> str:
    target, chain = called
    return ".".join([str(target).replace(":", "."), *chain])


def targets_of(module: Module, expression: ast.expr) -> list[Called]:
    """Return the possible targets of a dotted name of the module; [] for another expression."""
    base, chain = dotted(expression)
    return [] if base is None else [(target, chain) for target in module.targets(base)]


def makes_members(made: ast.ClassDef, methods: set[str]) -> bool:
    """Return whether defining an enum (recognised by the name of its base) runs its methods."""
    is_enum = any(ast.unparse(base).endswith(("Enum", "Flag")) for base in made.bases)
    return is_enum and not _OF_MEMBERS.isdisjoint(methods)


def _has_metaclass(made: ast.ClassDef) -> bool:
    return any(each.arg == "metaclass" and ast.unparse(each.value) != "abc.ABCMeta" for each in made.keywords)
