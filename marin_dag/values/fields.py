"""Field markers: the type of a config field says what the field is for. A field without marker is identity."""

import dataclasses
import math
import operator
import sys
import typing
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class RuntimeField:
    """Marks execution: never in an identity."""


@dataclasses.dataclass(frozen=True)
class StopField:
    """Marks the milestone at which a step stops: in the key of the record, not in the digest."""


@dataclasses.dataclass(frozen=True)
class OnceField:
    """Marks what acts only where a step begins."""


Runtime = Annotated[T, RuntimeField()]
"""A config field that is execution: `workers: Runtime[int] = 2`. It never enters an identity."""
StopAt = Annotated[T, StopField()]
"""The milestone at which a step stops, which is not in the digest of its run."""
Once = Annotated[T, OnceField()]
"""A field that acts only where a step begins. `then` does not inherit it, and a value other than its default makes
another identity even if nothing else differs."""

Plain = bool | int | float | str | tuple[()] | None


# Equal to itself alone: of two equal ones (0 and False) `Annotated` would take the first it ever saw for both.
@dataclasses.dataclass(frozen=True, eq=False)
class Added:
    """Marks identity that a class got when there were outputs already: at `without` it is not in the document.

    `without` is what the class meant before it had the field, which no later edit changes. The default of the field
    may become another one: as with every field, a recipe that does not write it then has another identity.
    """

    without: Plain
    """The meaning of the class without the field: None, a truth value, a number, a text or ()."""

    def __post_init__(self) -> None:
        is_plain = self.without is None or type(self.without) in (bool, int, float, str) or self.without == ()
        if not is_plain or (isinstance(self.without, float) and not math.isfinite(self.without)):
            raise TypeError(
                f"Added(without={self.without!r}): use None, a truth value, a finite number, a text or (), which no "
                "edit of another class changes; or type the field `X | None`, where None means as before."
            )


@cache
def markers(owner: Any) -> dict[str, tuple[object, ...]]:
    """Return the markers of each field of a pydantic model or a dataclass, in order of declaration."""
    if issubclass(owner, BaseModel):
        return {name: tuple(field.metadata) for name, field in owner.model_fields.items()}
    hints = typing.get_type_hints(owner, include_extras=True)
    fields = [field.name for field in dataclasses.fields(owner)]
    return {name: tuple(getattr(hints[name], "__metadata__", ())) for name in fields}


@cache
def identity_fields(owner: Any) -> tuple[str, ...]:
    """Return the names of the fields that are identity, sorted; where a step stops is not."""
    execution = (RuntimeField, StopField)
    return tuple(
        sorted(name for name, marks in markers(owner).items() if not any(isinstance(m, execution) for m in marks))
    )


@cache
def added_fields(owner: Any) -> dict[str, Plain]:
    """Return what the class meant without each of its `Added` fields.

    Raises:
        TypeError: an `Added` field has no default, or is no identity.
    """
    found: dict[str, Plain] = {}
    for name, marks in markers(owner).items():
        added = [mark for mark in marks if isinstance(mark, Added)]
        if not added:
            continue
        where = f"{owner.__qualname__}.{name} is Added"
        if len(added) > 1:
            raise TypeError(f"{where} {len(added)} times; write it once, with what the class meant without the field.")
        if name not in identity_fields(owner):
            raise TypeError(f"{where}, and Runtime or StopAt, which no digest contains; leave Added out.")
        if _is_required(owner, name):
            raise TypeError(f"{where}, so it needs a default: recipes older than the field do not write it.")
        found[name] = added[0].without
    return found


def _is_required(owner: Any, name: str) -> bool:
    if issubclass(owner, BaseModel):
        return bool(owner.model_fields[name].is_required())
    field: Any = owner.__dataclass_fields__[name]
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def class_named(name: str) -> type | None:
    """Return a class by the dotted name that a document has, if this process has imported it; import nothing."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is not None:
            try:
                found = operator.attrgetter(".".join(parts[cut:]))(module)
            except AttributeError:
                break
            return found if isinstance(found, type) else None
    return None


def stop_field(config_type: type[BaseModel]) -> str | None:
    found = [name for name, marks in markers(config_type).items() if any(isinstance(m, StopField) for m in marks)]
    if len(found) > 1:
        raise TypeError(f"{config_type.__qualname__}: {' and '.join(found)} are all StopAt; keep one.")
    return found[0] if found else None


@cache
def once_fields(config_type: type[BaseModel]) -> dict[str, Any]:
    defaults = {}
    for name, marks in markers(config_type).items():
        if any(isinstance(m, OnceField) for m in marks):
            field = config_type.model_fields[name]
            if field.is_required():
                raise TypeError(f"{config_type.__qualname__}.{name} is Once, so it needs a default to return to.")
            defaults[name] = field.get_default(call_default_factory=True)
    return defaults
