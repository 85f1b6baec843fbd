"""Walker over the values of configs: the one place that takes them apart and puts them together again."""

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from marin_dag.values.reference import Reference

PLAIN = frozenset({NoneType, bool, int, float, str})
"""Types of values that hold no others."""
ValueT = TypeVar("ValueT")


class Form(enum.Enum):
    """The way in which a value holds others."""

    LEAF = "leaf"
    REFERENCE = "reference"
    ENUM = "enum"
    MODEL = "model"
    DATACLASS = "dataclass"
    NAMEDTUPLE = "namedtuple"
    SEQUENCE = "sequence"
    MAPPING = "mapping"
    SET = "set"

    __hash__ = object.__hash__  # Enum's own is a call of Python, and a plan asks several times for each value


WITH_FIELDS = frozenset({Form.MODEL, Form.DATACLASS, Form.NAMEDTUPLE})
_WITHOUT_CHILDREN = frozenset({Form.LEAF, Form.REFERENCE, Form.ENUM})


class _Forms(dict[type, Form]):
    def __missing__(self, owner: type) -> Form:
        self[owner] = found = _form_of(owner)
        return found


form_of: Callable[[type], Form] = _Forms().__getitem__  # no function of Python: a plan calls it 200,000 times


def _form_of(owner: type) -> Form:
    if issubclass(owner, Reference):
        return Form.REFERENCE
    if issubclass(owner, enum.Enum):  # before the classes that a member may derive from
        return Form.ENUM
    if issubclass(owner, BaseModel):
        return Form.MODEL
    if issubclass(owner, tuple) and hasattr(owner, "_fields"):
        return Form.NAMEDTUPLE
    if issubclass(owner, list | tuple):
        return Form.SEQUENCE
    if issubclass(owner, dict):
        return Form.MAPPING
    if issubclass(owner, set | frozenset):
        return Form.SET
    return Form.DATACLASS if dataclasses.is_dataclass(owner) else Form.LEAF


def children(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return name and value of what lies one level below, in order: field, key or index."""
    owner: Any = type(value)
    match form_of(owner):
        case Form.MODEL | Form.DATACLASS:
            return [(name, getattr(value, name)) for name in _names_of(owner)]
        case Form.NAMEDTUPLE:
            return zip(value._fields, value, strict=True)
        case Form.SEQUENCE | Form.SET:
            return enumerate(value)
        case Form.MAPPING:
            return cast(Iterable[tuple[Any, Any]], value.items())
    return ()


@cache
def _names_of(owner: Any) -> tuple[str, ...]:
    """Return the names of the fields of a model or dataclass: both compute them again at each call."""
    if issubclass(owner, BaseModel):
        return tuple(owner.model_fields)
    return tuple(field.name for field in dataclasses.fields(owner))


def rebuilt(value: Any, changed: Mapping[Any, Any], *, is_checked: bool) -> Any:
    """Return `value` with some of its `children` replaced; `is_checked` runs the validators of a model."""
    match form_of(type(value)):
        case Form.MODEL:
            whole = {**dict(children(value)), **changed}
            return type(value)(**whole) if is_checked else value.model_copy(update=changed)
        case Form.DATACLASS:
            return dataclasses.replace(value, **changed)
        case Form.NAMEDTUPLE:
            return value._replace(**changed)
        case Form.MAPPING:
            return {**value, **changed}
        case Form.SEQUENCE | Form.SET:
            return type(value)(changed.get(index, item) for index, item in enumerate(value))
    raise TypeError(f"{value!r} holds no other values.")


def references_in(value: Any, path: str = "") -> list[tuple[str, Reference]]:
    """Return every reference below `value`, with the dotted path of its field, in field order."""
    found: list[tuple[str, Reference]] = []
    _add_references(value, path, found)
    return found


def _add_references(value: Any, path: str, found: list[tuple[str, Reference]]) -> None:
    form = form_of(type(value))
    if form is Form.REFERENCE:
        found.append((path, value))
    if form not in _WITHOUT_CHILDREN:
        for name, item in children(value):
            if type(item) not in PLAIN:
                _add_references(item, f"{path}.{name}" if path else str(name), found)


def replace_references(value: ValueT, replacement: Callable[[Any], Reference]) -> ValueT:
    """Return `value` with every reference replaced; what holds none stays the same object. Runs no validators."""
    form = form_of(type(value))
    if form is Form.REFERENCE:
        return cast(ValueT, replacement(value))
    if form in _WITHOUT_CHILDREN:
        return value
    found = ((name, item, replace_references(item, replacement)) for name, item in children(value))
    changed = {name: new for name, item, new in found if new is not item}
    return cast(ValueT, rebuilt(value, changed, is_checked=False)) if changed else value


def pairs(given: Any, found: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what was given and what was made of it, here and at each place below that both have."""
    yield given, found
    if isinstance(given, Mapping):
        for name, item in children(found):
            if name in given:
                yield from pairs(given[name], item)
    elif isinstance(given, list | tuple) and isinstance(found, list | tuple) and len(given) == len(found):
        for one, other in zip(given, found, strict=True):
            yield from pairs(one, other)


def is_structured(option: Any) -> bool:
    """Return whether a declared type is a class with fields."""
    return isinstance(option, type) and form_of(option) in WITH_FIELDS


def fields_of(owner: Any) -> Mapping[str, Any]:
    """Return the fields that one sets of a class with fields, each with its declared type and constraints."""
    return _fields_of(owner)


@cache
def _fields_of(owner: Any) -> Mapping[str, Any]:
    if issubclass(owner, BaseModel):
        return {name: _annotation(field.annotation, field.metadata) for name, field in owner.model_fields.items()}
    hints = typing.get_type_hints(owner, include_extras=True)
    if form_of(owner) is Form.NAMEDTUPLE:
        return {name: hints.get(name, Any) for name in owner._fields}
    return {field.name: hints[field.name] for field in dataclasses.fields(owner) if field.init}


def _annotation(annotation: Any, marks: Sequence[Any]) -> Any:
    """Return the declared type with its constraints, so that `Field(ge=0)` is checked on the value alone."""
    for mark in marks:
        annotation = typing.Annotated[annotation, mark]
    return annotation


def structures_in(hint: Any) -> Iterator[type]:
    """Yield the classes with fields that a field of this type takes, as they are or as items of a list or mapping."""
    if is_structured(hint):
        yield hint
    else:
        for inner in typing.get_args(hint):
            yield from structures_in(inner)
