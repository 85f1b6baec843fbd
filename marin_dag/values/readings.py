"""Readings: text that a user typed, read by the declared type of the field; and the form that a field takes."""

import ast
import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, Union

from pydantic import TypeAdapter, ValidationError

from marin_dag.errors import UserError
from marin_dag.values.reference import Reference
from marin_dag.values.walk import fields_of, is_structured, pairs

MAX_ON_ONE_LINE = 3
CONTAINER_WANTED = ("tuple_type", "list_type", "dict_type")
"""Pydantic's codes for a value that is no tuple, list or mapping where one belongs."""


class RefusedValueError(ValueError):
    """A value that a field does not take."""


def read_text(hint: Any, text: str, context: dict[str, Any] | None) -> Any:
    """Return `text` as JSON, as a Python literal, or as it stands: the first that the declared type takes."""
    readings: list[Any] = []
    for read in (json.loads, ast.literal_eval):
        try:
            readings.append(read(text))
        except (ValueError, SyntaxError):
            continue
    first: RefusedValueError | None = None
    # The text itself comes last: a field of type str takes "1" as text, since 1 is no str.
    for reading in [*readings, text]:
        try:
            return validated(hint, reading, context)
        except RefusedValueError as error:
            first = first or error
        except UserError as error:  # there is no such step
            first = RefusedValueError(str(error))
    assert first is not None
    if not text:
        raise RefusedValueError(f"no value follows the equals sign; it takes {_choice(hint)}")
    if text.lower() == "none" and type(None) in _options(hint):
        raise RefusedValueError(f"{str(first).rstrip('.')}. To have none, write null.")
    raise first


def validated(hint: Any, value: Any, context: dict[str, Any] | None = None) -> Any:
    """Return `value` as the declared type takes it; a truth value is never a number."""
    try:
        found = TypeAdapter(hint).validate_python(value, context=context)
    except ValidationError as error:
        raise RefusedValueError(_refusal(hint, error)) from None
    if ignored := [name for given, taken in pairs(value, found) for name in _ignored(given, taken)]:
        raise RefusedValueError(f"{value!r} is refused: {', '.join(ignored)}; it takes {_choice(hint)}")
    if any(_is_hidden_bool(given, taken) for given, taken in pairs(value, found)):
        raise RefusedValueError(f"{value!r} is refused: a truth value is no number; it takes {_choice(hint)}")
    return found


def first_problem(error: ValidationError, *, shows_whole: bool = True) -> str:
    """Return the first problem that pydantic found, in one line; `shows_whole` shows a value that is wrong whole."""
    problem = error.errors(include_url=False)[0]
    inner = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    if not inner and not shows_whole:
        return f"{message}."
    return f"{problem['input']!r} is refused{' at ' + inner if inner else ''}: {message}."


def shape(hint: Any) -> str:
    """Return what a field of this type takes, as a user types it."""
    return " or ".join(dict.fromkeys(_shapes(hint)))


def _choice(hint: Any) -> str:
    shapes = list(dict.fromkeys(_shapes(hint)))
    return f"{shape(hint)}." if len(shapes) < MAX_ON_ONE_LINE else "one of\n  " + "\n  ".join(shapes)


def _refusal(hint: Any, error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    first, structured = problems[0], [option for option in _options(hint) if is_structured(option)]
    if first["type"] in CONTAINER_WANTED and not first["loc"]:
        return f"{first['input']!r} is refused: it takes {_choice(hint)}"
    if not structured or (len(problems) == 1 and not first["type"].startswith(("dataclass", "model", "missing"))):
        return first_problem(error)
    missing = [json.dumps(problem["loc"][-1]) for problem in problems if problem["type"] == "missing"]
    lacks = f"it lacks {', '.join(missing)}; " if len(structured) == 1 and missing else ""
    return f"{first['input']!r} is refused: {lacks}it takes {_choice(hint)}"


def _options(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) is typing.Annotated:
        yield from _options(typing.get_args(hint)[0])
    elif typing.get_origin(hint) in (Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from _options(option)
    else:
        yield hint


def _shapes(hint: Any) -> Iterator[str]:
    for option in _options(hint):
        if option is type(None):
            yield "null"
        elif typing.get_origin(option) is typing.Literal:
            yield from (json.dumps(value) for value in typing.get_args(option))
        elif isinstance(owner := typing.get_origin(option) or option, type) and issubclass(owner, Reference):
            yield "a step"
        elif is_structured(option):
            yield "{" + ", ".join(f'"{name}": {shape(inner)}' for name, inner in fields_of(option).items()) + "}"
        elif typing.get_origin(option) in (tuple, list):
            inner = [item for item in typing.get_args(option) if item is not Ellipsis]
            yield f"[{', '.join(shape(item) for item in inner)}{', ...' if len(inner) == 1 else ''}]"
        elif typing.get_origin(option) is dict:
            key, inner = typing.get_args(option)
            yield f"{{{shape(key)}: {shape(inner)}, ...}}"
        else:
            yield getattr(option, "__name__", str(option))


def _ignored(given: Any, taken: Any) -> Iterator[str]:
    """Yield what pydantic leaves out silently: it makes a dataclass of a mapping with more keys than fields."""
    if isinstance(given, dict) and dataclasses.is_dataclass(taken):
        names = {field.name for field in dataclasses.fields(taken)}
        yield from (f"{type(taken).__name__} has no field {key!r}" for key in given if key not in names)


def _is_hidden_bool(given: Any, taken: Any) -> bool:
    return isinstance(given, bool) and isinstance(taken, int | float) and not isinstance(taken, bool)
