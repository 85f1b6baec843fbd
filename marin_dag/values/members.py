"""Members: what a value of a config holds that may hold more, under the names by which a dotted path calls it."""

import dataclasses
from collections.abc import Iterable
from types import NoneType

from pydantic import BaseModel

PLAIN = frozenset({NoneType, bool, int, float, str})
"""Types of what holds nothing."""


def members_of(value: object) -> list[tuple[object, object]]:
    """As `items_of`, without what is PLAIN."""
    return [(name, item) for name, item in items_of(value) if type(item) not in PLAIN]


def items_of(value: object) -> Iterable[tuple[object, object]]:
    """Name and value of what lies one level below, in order; of what is no container, none."""
    match value:
        case BaseModel():
            return ((name, getattr(value, name)) for name in type(value).model_fields)
        case dict():
            return value.items()
        case list() | tuple():
            return enumerate(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return ()
