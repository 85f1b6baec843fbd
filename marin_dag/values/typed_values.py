"""Typed values: that the dataclasses of a config hold what they declare, and no number is larger than an int64.

Pydantic takes a dataclass that was made already as it is, and Python looks at no types and has numbers of any size.
What is wrong there would be met by a worker, after all that comes before it has run.
"""

import contextlib
import dataclasses
import inspect
import reprlib
import typing
from functools import cache
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from marin_dag.values.members import PLAIN, items_of

LARGEST = 2**63 - 1


def wrong_value_in(value: object) -> str:
    """The first field in `value`, such as a config, with a number that no int64 holds, or of a dataclass with another
    type than it declares, and what to write; or "".

    Nothing is converted: "5" is no number, though pydantic would read it as one.
    """
    inner = []
    for name, item in items_of(value):
        if type(item) is int:
            if not -LARGEST - 1 <= item <= LARGEST:
                end = f"at most {LARGEST:,}" if item > 0 else f"at least {-LARGEST - 1:,}"
                return f".{name}: {reprlib.repr(item)} is refused; a whole number is {end}."
        elif type(item) not in PLAIN:
            inner.append((name, item))
    kind: Any = type(value)
    is_made: bool = dataclasses.is_dataclass(kind)  # and not a class itself
    for name, (adapter, declared) in _declared(kind).items() if is_made else ():
        given = getattr(value, name)
        try:
            is_taken = not _is_read_from_text(given, adapter.validate_python(given))
        except ValidationError:
            is_taken = False
        if not is_taken:
            return f".{name}: {reprlib.repr(given)} is refused; {kind.__name__}({name}=...) takes {declared}."
    for name, item in inner:
        if wrong := wrong_value_in(item):
            return f".{name}{wrong}"
    return ""


@cache
def _declared(owner: Any) -> dict[str, tuple[TypeAdapter[Any], str]]:
    """Field to what checks a value of it, and to its type as it is written; without what pydantic cannot check."""
    hints = typing.get_type_hints(owner)
    found: dict[str, tuple[TypeAdapter[Any], str]] = {}
    for field in dataclasses.fields(owner):
        with contextlib.suppress(PydanticSchemaGenerationError):
            found[field.name] = TypeAdapter(hints[field.name]), inspect.formatannotation(hints[field.name])
    return found


def _is_read_from_text(given: Any, found: Any) -> bool:
    if isinstance(given, str):
        return not isinstance(found, str)
    if isinstance(given, dict) and isinstance(found, dict):
        return any(_is_read_from_text(item, found[key]) for key, item in given.items() if key in found)
    if isinstance(given, list | tuple) and isinstance(found, list | tuple):
        return any(_is_read_from_text(one, other) for one, other in zip(given, found, strict=True))
    return False
