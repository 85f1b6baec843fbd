"""Members: what a value of a config holds that may hold more, under the names by which a dotted path calls it."""

import dataclasses
from collections.abc import Iterable
from types import NoneType

from pydantic import BaseModel

PLAIN = frozenset({NoneType, bool, int, float, str})
"""Types of what holds nothing."""


def members_of(value: object) -> list[tuple[object, object]]:
    """Name and value of what lies one level below, in order, without what is PLAIN; of what is no container, none."""
    named: Iterable[tuple[object, object]]
    match value:
        case BaseModel():
            named = ((name, getattr(value, name)) for name in type(value).model_fields)
        case dict():
            named = value.items()
        case list() | tuple():
            named = enumerate(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            named = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        case _:
            return []
    return [(name, item) for name, item in named if type(item) not in PLAIN]
