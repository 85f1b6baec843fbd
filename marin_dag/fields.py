"""Field markers: what a config field is for, said by its type. A field without marker is identity."""

import dataclasses
import typing
from functools import cache
from typing import Any

from pydantic import BaseModel


@dataclasses.dataclass(frozen=True)
class RuntimeField:
    """Marks execution: never in an identity."""


@dataclasses.dataclass(frozen=True)
class StopField:
    """Marks the milestone at which a trajectory stops: in the key of the record, not in the digest."""


@dataclasses.dataclass(frozen=True)
class OnceField:
    """Marks what acts only where a trajectory leaves its predecessor."""


@cache
def markers(owner: Any) -> dict[str, tuple[object, ...]]:
    """Field name to its markers, for a pydantic model or a dataclass, in order of declaration."""
    if issubclass(owner, BaseModel):
        return {name: tuple(field.metadata) for name, field in owner.model_fields.items()}
    hints = typing.get_type_hints(owner, include_extras=True)
    fields = [field.name for field in dataclasses.fields(owner)]
    return {name: tuple(getattr(hints[name], "__metadata__", ())) for name in fields}


@cache
def identity_fields(owner: Any) -> tuple[str, ...]:
    """Names of the fields that are identity, sorted; where a trajectory stops is not."""
    execution = (RuntimeField, StopField)
    return tuple(
        sorted(name for name, marks in markers(owner).items() if not any(isinstance(m, execution) for m in marks))
    )


def stop_field(config_type: type[BaseModel]) -> str | None:
    """The one `StopAt` field of a config, if any."""
    found = [name for name, marks in markers(config_type).items() if any(isinstance(m, StopField) for m in marks)]
    if len(found) > 1:
        raise TypeError(f"{config_type.__qualname__}: {' and '.join(found)} are all StopAt; a trajectory has one stop.")
    return found[0] if found else None


def once_fields(config_type: type[BaseModel]) -> dict[str, Any]:
    """`Once` fields and their defaults."""
    defaults = {}
    for name, marks in markers(config_type).items():
        if any(isinstance(m, OnceField) for m in marks):
            field = config_type.model_fields[name]
            if field.is_required():
                raise TypeError(f"{config_type.__qualname__}.{name} is Once, so it needs a default to return to.")
            defaults[name] = field.get_default(call_default_factory=True)
    return defaults
