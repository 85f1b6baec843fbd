"""Structures: classes with fields, pydantic models and dataclasses, and where a declared type takes them."""

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel


def is_structured(option: Any) -> bool:
    """Whether a declared type is a class with fields."""
    return isinstance(option, type) and (issubclass(option, BaseModel) or dataclasses.is_dataclass(option))


def fields_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a class with fields, each with its declared type."""
    if issubclass(owner, BaseModel):
        yield from ((name, field.annotation) for name, field in owner.model_fields.items())
        return
    hints = typing.get_type_hints(owner)
    yield from ((field.name, hints[field.name]) for field in dataclasses.fields(owner) if field.init)


def structures_in(hint: Any) -> Iterator[type]:
    """The classes with fields that a field of this type takes, as they are or as items of a list or mapping."""
    if is_structured(hint):
        yield hint
    else:
        for inner in typing.get_args(hint):
            yield from structures_in(inner)


def structures_at(hint: Any, location: Sequence[str | int]) -> Iterator[type]:
    """The classes with fields that the place in a value takes, of which pydantic says the location."""
    owners = list(structures_in(hint))
    for part in location:
        inner = [kept for owner in owners for name, kept in fields_of(owner) if name == part]
        if inner:  # neither the index of an item nor the name of an option
            owners = [each for kept in inner for each in structures_in(kept)]
    return iter(owners)
