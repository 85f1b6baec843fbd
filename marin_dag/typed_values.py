"""Typed values: that the dataclasses of a config hold what they declare, and no number is larger than an int64.

Pydantic takes a dataclass that was made already as it is, and Python looks at no types and has numbers of any size.
What is wrong there would be met by a worker, after all that comes before it has run.
"""

import contextlib
import dataclasses
import inspect
import reprlib
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from marin_dag.members import items_of, members_of

LARGEST = 2**63 - 1


def wrong_value_in(config: BaseModel) -> str:
    """The first field in `config` with a number that no int64 holds, or of a dataclass with another type than it
    declares, and what to write; or "".

    Nothing is converted: "5" is no number, though pydantic would read it as one.
    """
    for path, value in _values_in(config, ""):
        for name, item in items_of(value):
            if type(item) is int and not -LARGEST - 1 <= item <= LARGEST:
                end = f"at most {LARGEST:,}" if item > 0 else f"at least {-LARGEST - 1:,}"
                return f"{path}.{name}: {reprlib.repr(item)} is refused; a whole number is {end}."
        kind: Any = type(value)
        is_made: bool = dataclasses.is_dataclass(kind)  # and not a class itself
        for name, (adapter, declared) in _declared(kind).items() if is_made else ():
            given = getattr(value, name)
            try:
                is_taken = not _is_read_from_text(given, adapter.validate_python(given))
            except ValidationError:
                is_taken = False
            if not is_taken:
                cure = f"{kind.__name__}({name}=...) takes {declared}"
                return f"{path}.{name}: {reprlib.repr(given)} is refused; {cure}."
    return ""


def _values_in(value: object, path: str) -> Iterator[tuple[str, Any]]:
    """`value` and what it holds, at any depth, each behind the dotted path of its field; without what is PLAIN."""
    yield path, value
    for name, item in members_of(value):
        yield from _values_in(item, f"{path}.{name}")


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
