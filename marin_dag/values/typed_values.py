"""Typed values: a check that the dataclasses of a config hold what they declare, and no number exceeds an int64.

Pydantic takes a dataclass instance as it is, and Python checks no types and has numbers of any size. Without this
check a worker would meet the wrong value, after everything before it has run.
"""

import contextlib
import dataclasses
import inspect
import reprlib
import typing
from functools import cache
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from marin_dag.values.walk import PLAIN, Form, children, form_of, pairs

LARGEST = 2**63 - 1


def wrong_value_in(value: object) -> str:
    """Return the path of the first wrong value below `value`, what is wrong and what to write; "" if all is right.

    Wrong is a number that no int64 holds, and a field of a dataclass with another type than it declares. Nothing is
    converted: "5" is no number, though pydantic would read it as one.
    """
    inner = []
    for name, item in children(value):
        if type(item) is int:
            if not -LARGEST - 1 <= item <= LARGEST:
                end = f"at most {LARGEST:,}" if item > 0 else f"at least {-LARGEST - 1:,}"
                return f".{name}: {reprlib.repr(item)} is refused; a whole number is {end}."
        elif type(item) not in PLAIN and form_of(type(item)) is not Form.REFERENCE:
            inner.append((name, item))
    owner: Any = type(value)
    for name, (adapter, declared) in _declared(owner).items() if form_of(owner) is Form.DATACLASS else ():
        given = getattr(value, name)
        if not _is_taken(given, adapter):
            return f".{name}: {reprlib.repr(given)} is refused; {owner.__name__}({name}=...) takes {declared}."
    for name, item in inner:
        if wrong := wrong_value_in(item):
            return f".{name}{wrong}"
    return ""


def _is_taken(given: Any, adapter: TypeAdapter[Any]) -> bool:
    try:
        found = adapter.validate_python(given)
    except ValidationError:
        return False
    return not any(isinstance(one, str) and not isinstance(other, str) for one, other in pairs(given, found))


@cache
def _declared(owner: Any) -> dict[str, tuple[TypeAdapter[Any], str]]:
    """Return the check of each field and its type as it is written, without what pydantic cannot check."""
    hints = typing.get_type_hints(owner)
    found: dict[str, tuple[TypeAdapter[Any], str]] = {}
    for field in dataclasses.fields(owner):
        with contextlib.suppress(PydanticSchemaGenerationError):
            found[field.name] = TypeAdapter(hints[field.name]), inspect.formatannotation(hints[field.name])
    return found
