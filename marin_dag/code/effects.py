"""Effects: what running some code may change, as far as one module shows it."""

from typing import NamedTuple

from marin_dag.code.objects import Called

INSTANCE, ITEM, BASE, IMPORT, TYPE = "()", "[]", "class", "import", "type"
"""Ends of a dotted name that mean an instance of its class, its item, a class below it, its import, a field of it."""


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
