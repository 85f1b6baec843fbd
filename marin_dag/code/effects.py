"""Effects: what running some code may change, as far as one module shows it."""

from typing import NamedTuple

from marin_dag.code.objects import Called

INSTANCE, ITEM, BASE, IMPORT = "()", "[]", "class", "import"
"""Ends of a dotted name that mean an instance of the class of that name, its item, a class below it, its import."""


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
