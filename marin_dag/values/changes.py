"""Changes to a frozen config: dotted paths, validated against the schema; a wrong key names the nearest right one."""

import dataclasses
import difflib
import functools
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from marin_dag.values.readings import RefusedValueError, first_problem, read_text, shape, validated
from marin_dag.values.structures import fields_of, structures_in

MAX_FIELDS = 8
"""Those of a class that are listed beside a hint."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class ChangeError(UserError):
    """A change that the schema does not allow."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """ " did you mean ...?" and a leading space, or nothing if no candidate is near."""
    return _meant(_near(word, candidates))


def _meant(name: str | None) -> str:
    return "" if name is None else f" Did you mean {name!r}?"


def _near(word: str, candidates: Iterable[str]) -> str | None:
    names = sorted(candidates)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if not found and word:  # a name without its folder ("web" for "tokenize/web") is near, whatever its length
        found = [name for name in names if name.rsplit("/", 1)[-1] == word or name.startswith(word)][:1]
    return found[0] if found else None


def nearest_field(word: str, owner: type) -> str:
    """As `nearest`, of the fields of a class; also for what people call one by: its initials (`lr`), the class that it
    takes (`ema`), and a field of that class (`skip_sigma`)."""
    fields = dict(fields_of(owner))
    for name, hint in fields.items():
        inner = list(structures_in(hint))
        initials = "".join(part[:1] for part in name.split("_"))
        if (len(word) > 1 and word == initials) or word.replace("_", "") in (kind.__name__.lower() for kind in inner):
            return _meant(name)
        if word.startswith(f"{name}_") and inner:
            within = _near(word.removeprefix(f"{name}_"), [field for kind in inner for field, _ in fields_of(kind)])
            return _meant(name if within is None else f"{name}.{within}")
    return nearest(word, fields)


def apply_changes(config: ModelT, changes: Mapping[str, Any], *, owner: str) -> ModelT:
    """`config` with each dotted field of `changes` replaced and validated; nothing else moves."""
    # Whole fields first: "learning_rate" and then "learning_rate.end_value" may both be changed, in either order.
    for path, value in sorted(changes.items(), key=lambda item: item[0].count(".")):
        leaf = functools.partial(validated, value=value)
        config = _replace(config, type(config), path.split("."), leaf, owner, path)
    return config


def apply_text(
    config: ModelT, path: str, text: str, *, owner: str, input_named: Callable[[str], Any] | None = None
) -> ModelT:
    """`config` with the field at `path` set from text typed by a person, read by the field's own type."""
    context = {"input_named": input_named} if input_named else None
    return _replace(config, type(config), path.split("."), lambda hint: read_text(hint, text, context), owner, path)


def value_at(value: Any, path: str) -> Any:
    """What lies at a dotted path."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value[part]
        elif isinstance(value, (tuple, list)):
            value = value[int(part)]
        else:
            value = getattr(value, part)
    return value


def _replace(
    value: Any,
    hint: Any,
    path: list[str],
    leaf: Callable[[Any], Any],
    owner: str,
    whole: str,
    examples: Sequence[Any] | None = None,
) -> Any:
    """`value` with what lies at `path` replaced; `hint` is the declared type of `value`, `examples` are its field's."""
    if not path:
        try:
            return leaf(hint)
        except RefusedValueError as error:
            there = ", ".join(f"{owner}.{whole}.{name}" for name in _fields_there(value))
            cure = f"\nOr set one field of what is there: {there}" if there else said_now(value)
            cure += f" For example: {json.dumps(examples[0])}" if examples else ""
            raise ChangeError(f"{owner}.{whole}: {error}{cure}") from None
    key, rest = path[0], path[1:]
    where = f"{owner}.{whole}"

    def changed(old: Any, inner: Any, examples: Sequence[Any] | None = None) -> Any:
        return _replace(old, inner, rest, leaf, owner, whole, examples)

    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        if key not in fields:
            raise _no_field(where, value, key)
        new = {name: getattr(value, name) for name in fields}
        new[key] = changed(new[key], _annotation(type(value), key), fields[key].examples)
        return _rebuilt(where, lambda: type(value)(**new))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if key not in _fields_there(value):
            raise _no_field(where, value, key)
        item = changed(getattr(value, key), typing.get_type_hints(type(value), include_extras=True)[key])
        return _rebuilt(where, lambda: dataclasses.replace(value, **{key: item}))
    if isinstance(value, dict):
        inner = _argument(hint, dict, 1)
        if key not in value and rest:
            raise _unknown(where, "this mapping", key, value)
        return {**value, key: changed(value.get(key), inner)}
    if isinstance(value, (tuple, list)):
        if not key.isdigit() or int(key) >= len(value):
            raise _unknown(where, f"this list of {len(value)}", key, [str(i) for i in range(len(value))])
        index = int(key)
        item = changed(value[index], _argument(hint, type(value), index))
        return type(value)([*value[:index], item, *value[index + 1 :]])
    takes = f": it takes {shape(hint)}" if any(structures_in(hint)) else ""
    raise ChangeError(f"{where}: {value!r} has no field {key!r}; set the whole value instead{takes}.")


def said_now(value: Any) -> str:
    """ " It is 0.1 now." with a leading space, of a value that is short enough to say; of a mapping one to copy."""
    if isinstance(value, dict) and value and all(isinstance(item, Input) for item in value.values()):
        return f" It is {json.dumps({key: _named(item) for key, item in value.items()})} now."
    return f" It is {value!r} now." if isinstance(value, int | float | str | None) else ""


def _named(item: Input[Any]) -> str:
    """An input as a person types it."""
    is_at_its_stop = item.milestone is None or item.follows_stop
    return item.name if is_at_its_stop else f"{item.name}@{item.milestone}"


def _fields_there(value: Any) -> list[str]:
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in dataclasses.fields(value) if field.init]
    return []


def _rebuilt(where: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except ValidationError as error:
        raise ChangeError(f"{where}: {first_problem(error, shows_whole=False)}") from None
    except ValueError as error:
        raise ChangeError(f"{where}: {error}") from None


def _annotation(model: type[BaseModel], key: str) -> Any:
    """Declared type of a field with its constraints, so that `Field(ge=0)` is checked on the value alone."""
    field = model.model_fields[key]
    annotation: Any = field.annotation
    for mark in field.metadata:
        annotation = typing.Annotated[annotation, mark]
    return annotation


def _argument(hint: Any, container: type, index: int) -> Any:
    """The declared type of one item of a container, or Any where the declaration does not say."""
    for candidate in (hint, *typing.get_args(hint)):
        if typing.get_origin(candidate) is typing.Annotated:
            candidate = typing.get_args(candidate)[0]
        if typing.get_origin(candidate) is container:
            arguments = typing.get_args(candidate)
            if container is dict:
                return arguments[1]
            if container is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
                return arguments[0]
            return arguments[index]
    return Any


def _no_field(where: str, value: Any, key: str) -> ChangeError:
    found = " or ".join(repr(path) for path in _paths_to(value, key))
    meant = f" Did you mean {found}?" if found else nearest_field(key, type(value))
    return _unknown(where, type(value).__qualname__, key, _fields_there(value), meant)


def _unknown(where: str, owner: str, key: str, known: Iterable[str], meant: str | None = None) -> ChangeError:
    names = sorted(known)
    meant = nearest(key, names) if meant is None else meant
    # A hint is not to be looked for among forty names.
    fields = "" if meant and len(names) > MAX_FIELDS else f" Fields: {', '.join(names) or 'none'}."
    return ChangeError(f"{where}: {owner} has no field {key!r}.{meant}{fields}")


def _paths_to(value: Any, field: str) -> list[str]:
    """Dotted fields of `value` that end in `field`, one step down: what the field of a field is often taken for."""
    found = []
    for name in _fields_there(value):
        item = getattr(value, name)
        if field in (item if isinstance(item, dict) else _fields_there(item)):
            found.append(f"{name}.{field}")
    return found
