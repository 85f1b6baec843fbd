"""Same fields: a dataclass filled from an object whose fields have the same names, such as the config of a phase."""

import dataclasses
from typing import Any, TypeVar

FilledT = TypeVar("FilledT")


def filled_from(source: object, kind: type[FilledT], /, **others: Any) -> FilledT:
    """Return a dataclass with `others`, and all its further fields from `source`, which has them."""
    names = {field.name for field in dataclasses.fields(kind)} - others.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **others)
