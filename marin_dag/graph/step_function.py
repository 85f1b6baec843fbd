"""Step function: what its signature declares."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from marin_dag.values.fields import added_fields
from marin_dag.values.walk import Form, fields_of, form_of, structures_in


def types_of(function: Callable[..., Any]) -> tuple[type[Any], type[Any]]:
    """Return the config and result type of a step function.

    Raises:
        TypeError: it does not take (config, context), or a type is no frozen pydantic model.
    """
    where = f"@step {function.__module__}.{function.__qualname__}"
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2:
        raise TypeError(f"{where}: takes {len(parameters)} arguments; a step function takes (config, context).")
    result = inspect.signature(function).return_annotation
    types = tuple(_models(where, function, (parameters[0].annotation, result)))
    return types[0], types[1]


def check_markers(config_type: type[BaseModel]) -> None:
    """Raise TypeError if a config type, or a class that its fields take, has a wrong `Added` field."""
    pending: list[type] = [config_type]
    seen: set[type] = set()
    while pending:
        owner = pending.pop()
        if owner not in seen:
            seen.add(owner)
            if form_of(owner) is not Form.NAMEDTUPLE:
                added_fields(owner)
            pending.extend(inner for hint in fields_of(owner).values() for inner in structures_in(hint))


def _models(where: str, function: Callable[..., Any], annotations: tuple[Any, ...]) -> Iterator[type[Any]]:
    for role, annotation in zip(("config", "result"), annotations, strict=True):
        found = annotation
        if isinstance(annotation, str):
            try:
                found = eval(annotation, function.__globals__)
            except NameError as error:
                raise TypeError(f"{where}: the {role} type {annotation!r} is not defined above it ({error}).") from None
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            shown = "not given" if found is inspect.Parameter.empty else repr(found)
            raise TypeError(
                f"{where}: the {role} type is {shown}; a step function is written (config: MyConfig, context: "
                "StepContext) -> MyResult, with frozen pydantic models."
            )
        if not found.model_config.get("frozen") or found.model_config.get("extra") != "forbid":
            raise TypeError(f'{where}: {found.__qualname__} must be declared with frozen=True, extra="forbid".')
        yield found
