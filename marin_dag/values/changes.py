"""Changes of a frozen config by dotted paths: all applied, then validated once; a wrong path names the nearest one."""

import dataclasses
import difflib
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.values.readings import RefusedValueError, first_problem, read_text, shape, validated
from marin_dag.values.reference import Reference
from marin_dag.values.walk import WITH_FIELDS, Form, children, fields_of, form_of, rebuilt, structures_in

MAX_FIELDS = 8
"""Fields of a class that a message lists beside a hint."""
MAX_PATHS = 3
"""Changed fields that a message names."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class ChangeError(UserError):
    """A change that the schema does not allow."""


class Change(NamedTuple):
    """A field to set."""

    path: str
    read: Callable[[Any], Any]
    """Returns the value for the declared type of the field, or raises RefusedValueError."""
    is_implied: bool = False
    """Whether the engine makes the change, so that messages do not name it."""


def value_change(path: str, value: Any, *, is_implied: bool = False) -> Change:
    """Return the change that sets a field to a Python value."""
    return Change(path, lambda hint: validated(hint, value), is_implied)


def value_changes(values: Mapping[str, Any]) -> list[Change]:
    """Return the changes to these values, whole fields before their parts, in whatever order they are given."""
    return [value_change(path, value) for path, value in sorted(values.items(), key=lambda item: item[0].count("."))]


def text_change(path: str, text: str, reference_named: Callable[[str], Reference] | None = None) -> Change:
    """Return the change that sets a field from text that a user typed, read by the field's declared type."""
    context = None if reference_named is None else {"reference_named": reference_named}
    return Change(path, lambda hint: read_text(hint, text, context))


def changed(config: ModelT, changes: Iterable[Change], *, owner: str) -> ModelT:
    """Return `config` with all changes, validated once; of two changes of one field, or of a part, the later wins.

    Raises:
        ChangeError: a path leads nowhere, a value is refused, or the config with all changes is.
    """
    root = _Place(owner)
    for change in changes:
        place = root
        for key in change.path.split("."):
            place = place.inner.setdefault(key, _Place(owner))
        place.changes.append(change)
        place.inner.clear()
    return typing.cast(ModelT, _changed(config, type(config), root)) if root.inner else config


def value_at(value: Any, path: str) -> Any:
    """Return what lies at a dotted path; raise LookupError if there is nothing."""
    for key in path.split("."):
        value = dict(children(value))[_key(value, key)]
    return value


@dataclasses.dataclass
class _Place:
    """A place in a config: its own changes, and those of places below."""

    owner: str
    changes: list[Change] = dataclasses.field(default_factory=list)
    inner: dict[str, "_Place"] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """Name the changed fields for an error."""
        paths = [change.path for change in self._last_changes() if not change.is_implied]
        return ", ".join(f"{self.owner}.{path}" for path in paths) if 0 < len(paths) <= MAX_PATHS else self.owner

    def _last_changes(self) -> Iterator[Change]:
        yield from self.changes[-1:]
        for place in self.inner.values():
            yield from place._last_changes()


def _changed(value: Any, hint: Any, place: _Place, examples: Iterable[Any] | None = None) -> Any:
    """Return `value`, whose declared type is `hint`, with the changes of a place."""
    for change in place.changes:
        value = _read(change, value, hint, place.owner, examples)
    if not place.inner:
        return value
    new = {}
    for key, inner in place.inner.items():
        name, item, item_hint = _item(value, hint, key, inner)
        model_field = type(value).model_fields[name] if isinstance(value, BaseModel) else None
        new[name] = _changed(item, item_hint, inner, None if model_field is None else model_field.examples)
    try:
        return rebuilt(value, new, is_checked=True)
    except ValidationError as error:
        raise ChangeError(f"{place}: {first_problem(error, shows_whole=False)}") from None
    except ValueError as error:
        raise ChangeError(f"{place}: {error}") from None


def _read(change: Change, now: Any, hint: Any, owner: str, examples: Iterable[Any] | None) -> Any:
    try:
        return change.read(hint)
    except RefusedValueError as error:
        inside = ", ".join(f"{owner}.{change.path}.{name}" for name in _field_names(now))
        cure = f"\nOr set one field of what is there: {inside}" if inside else current_value(now)
        example = f" For example: {json.dumps(next(iter(examples)))}" if examples else ""
        raise ChangeError(f"{owner}.{change.path}: {error}{cure}{example}") from None


def _item(value: Any, hint: Any, key: str, place: _Place) -> tuple[Any, Any, Any]:
    """Return name, value and declared type of the child that `key` names."""
    form = form_of(type(value))
    if form is Form.MAPPING and (key in value or not place.inner):
        return key, value.get(key), _argument(hint, dict, 1)
    items = dict(children(value))
    name = _key(value, key)
    if name in items:
        if form in WITH_FIELDS and name in fields_of(type(value)):
            return name, items[name], fields_of(type(value))[name]
        if form is Form.SEQUENCE:
            return name, items[name], _argument(hint, type(value), name)
    if form in WITH_FIELDS:
        owner = type(value)
        raise _unknown(place, owner.__qualname__, key, _field_names(value), nearest_field(key, owner))
    if form in (Form.MAPPING, Form.SEQUENCE):
        what = "this mapping" if form is Form.MAPPING else f"this list of {len(value)}"
        names = [str(name) for name in items]
        raise _unknown(place, what, key, names, nearest(key, names))
    takes = f": it takes {shape(hint)}" if any(structures_in(hint)) else ""
    raise ChangeError(f"{place}: {value!r} has no field {key!r}; set the whole value instead{takes}.")


def _key(value: Any, key: str) -> Any:
    """Return the name of a child that `key` spells: fields of a NamedTuple have an index, too."""
    form = form_of(type(value))
    if form is Form.SEQUENCE and key.isdigit():
        return int(key)
    if form is Form.NAMEDTUPLE and key.isdigit() and int(key) < len(value):
        return value._fields[int(key)]
    return key


def _argument(hint: Any, container: type, index: int) -> Any:
    """Return the declared type of one item of a container, or Any where the declaration does not say."""
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


def current_value(value: Any) -> str:
    """Return " It is 0.1 now." with a leading space, for a value that is short enough to show, or ""."""
    if isinstance(value, dict) and value and all(isinstance(item, Reference) for item in value.values()):
        return f" It is {json.dumps({key: item.typed for key, item in value.items()})} now."
    return f" It is {value!r} now." if isinstance(value, int | float | str | None) else ""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return " Did you mean ...?" with a leading space, or "" if no candidate is near."""
    names = sorted(candidates)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if not found and word:  # a name without its folder ("web" for "tokenize/web") is near, whatever its length
        found = [name for name in names if name.rsplit("/", 1)[-1] == word or name.startswith(word)][:1]
    return f" Did you mean {found[0]!r}?" if found else ""


def nearest_field(word: str, owner: type) -> str:
    """Return the same for the fields of a class and those one step below: users often leave out the first part."""
    fields = fields_of(owner)
    inner = [
        f"{name}.{field}" for name, hint in fields.items() for kind in structures_in(hint) for field in fields_of(kind)
    ]
    exact = [path for path in dict.fromkeys(inner) if path.partition(".")[2] == word]
    return f" Did you mean {' or '.join(map(repr, exact))}?" if exact else nearest(word, [*fields, *inner])


def _unknown(place: _Place, owner: str, key: str, known: Iterable[str], meant: str) -> ChangeError:
    names = sorted(known)
    fields = "" if meant and len(names) > MAX_FIELDS else f" Fields: {', '.join(names) or 'none'}."
    return ChangeError(f"{place}: {owner} has no field {key!r}.{meant}{fields}")


def _field_names(value: Any) -> list[str]:
    return list(fields_of(type(value))) if form_of(type(value)) in WITH_FIELDS else []
