"""Canonical documents of values and their digests: equal values give equal bytes, in every process."""

import datetime
import decimal
import hashlib
import json
import math
from collections.abc import Iterable
from enum import Flag
from pathlib import PurePath
from typing import Any

from marin_dag.code.fingerprint import qualified_name
from marin_dag.errors import UserError
from marin_dag.store.redact import redact_field, redact_identity
from marin_dag.values.fields import added_fields, identity_fields
from marin_dag.values.walk import Form, form_of, references_in

_PLAIN = frozenset({type(None), bool, int, str})
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class NotCanonicalError(UserError, TypeError):
    """A value that has no one form, with its path and the cure."""

    def __init__(self, path: str, value: object, cure: str) -> None:
        super().__init__(f"{path}: {type(value).__qualname__} {value!r} has no canonical form; {cure}.")


def sha256(document: Any) -> str:
    """Return the digest of JSON data: keys sorted, no spaces, ASCII."""
    return hashlib.sha256(_ENCODER.encode(document).encode("ascii")).hexdigest()


def canonical(value: Any, path: str) -> Any:
    """Return `value` as JSON data; containers carry a tag, so that no two kinds of value coincide.

    1, 1.0, True and "1" differ, and so do 0.0 and -0.0, and Decimal("1.5") and Decimal("1.50"), which print
    differently. A tuple is a list, an aware time its instant, a numpy scalar its Python value. Classes count by module
    and name. A secret leaves its fingerprint, a URL's credentials nothing. `path` names the value in errors.
    """
    if type(value) is str:
        return redact_identity(value)
    if type(value) in _PLAIN:
        return value
    owner: Any = type(value)
    if owner is float:
        if not math.isfinite(value):
            raise NotCanonicalError(path, value, "write a finite number, or None for 'not set' where that is allowed")
        return value
    match form_of(owner):
        case Form.ENUM:  # before the classes that a member may derive from: a StrEnum is not its text
            return ["enum", qualified_name(owner), value.value if isinstance(value, Flag) else value.name]
        case Form.REFERENCE:
            return ["input", value.digest, value.milestone, value.subpath]
        case Form.MODEL:
            extra = value.__pydantic_extra__ or {}
            if extra:
                _check_no_references(extra.values(), path, "declare the field, so that the graph has the edge")
            return _fields("model", value, path, extra, is_frozen=bool(value.model_config.get("frozen")))
        case Form.DATACLASS:
            return _fields("dataclass", value, path, {}, is_frozen=owner.__dataclass_params__.frozen)
        case Form.NAMEDTUPLE:
            items = ([name, canonical(getattr(value, name), f"{path}.{name}")] for name in value._fields)
            return ["namedtuple", qualified_name(owner), *items]
        case Form.SEQUENCE if owner in (list, tuple):
            return ["list", *(canonical(item, f"{path}[{index}]") for index, item in enumerate(value))]
        case Form.MAPPING if owner is dict:
            _check_no_references(value, f"{path} key", "make it a value of the mapping")
            items = ([canonical(key, f"{path} key"), _named(key, item, path)] for key, item in value.items())
            return ["dict", *sorted(items, key=lambda item: json.dumps(item[0]))]
        case Form.SET if owner in (set, frozenset):
            _check_no_references(value, f"{path} item", "use a tuple")
            return ["set", *sorted((canonical(item, f"{path} item") for item in value), key=json.dumps)]
    return _canonical_leaf(value, path)


def _canonical_leaf(value: Any, path: str) -> Any:
    match value:
        case bytes() if type(value) is bytes:
            return ["bytes", value.hex()]
        case datetime.datetime():  # before date, which it is too
            if value.tzinfo is None:
                raise NotCanonicalError(path, value, "say which zone: datetime(..., tzinfo=UTC)")
            return ["datetime", value.astimezone(datetime.UTC).isoformat()]
        case datetime.date():
            return ["date", value.isoformat()]
        case datetime.timedelta():
            return ["timedelta", value.days, value.seconds, value.microseconds]
        case decimal.Decimal() if value.is_finite():
            sign, digits, exponent = value.as_tuple()  # `str` and `normalize` depend on the context, and may round
            return ["decimal", sign, "".join(map(str, digits)), exponent]
        case PurePath():
            return ["path", value.as_posix()]
    # By name, since importing numpy to ask would cost every plan a tenth of a second.
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        plain = value.item()
        if type(plain) in (bool, int, float, str, bytes):
            return canonical(plain, path)
    for plain_type in (str, int, float, bytes, dict, list, tuple, set, frozenset):
        if isinstance(value, plain_type):
            name = plain_type.__name__
            raise NotCanonicalError(path, value, f"it may be more than the {name} it derives from; use {name}(...)")
    cure = "use a number, str, Enum, frozen dataclass or frozen model, or type the field Runtime[...]"
    raise NotCanonicalError(path, value, cure)


def _fields(tag: str, value: object, path: str, extra: dict[str, Any], *, is_frozen: bool) -> list[Any]:
    owner: Any = type(value)
    if not is_frozen:
        raise NotCanonicalError(path, value, f"declare {owner.__qualname__} with frozen=True")
    named = [[name, _named(name, getattr(value, name), path)] for name in identity_fields(owner)]
    if added := added_fields(owner):
        # As texts: 0, 0.0 and False are equal to `==`.
        before = {name: json.dumps(_named(name, without, path)) for name, without in added.items()}
        named = [[name, node] for name, node in named if name not in before or json.dumps(node) != before[name]]
    named += [[name, _named(name, extra[name], path)] for name in sorted(extra)]
    return [tag, qualified_name(owner), *named]


def _check_no_references(values: Iterable[Any], path: str, cure: str) -> None:
    """Raise NotCanonicalError for a step where the graph looks for none, so that no edge would lead to it."""
    for _, item in references_in(list(values)):
        raise NotCanonicalError(path, item, cure)


def _named(name: object, value: object, path: str) -> Any:
    """Return the canonical form of a value whose name may say that it is a secret."""
    if type(value) is str and type(name) is str:
        return redact_field(name, value)
    return canonical(value, f"{path}.{name}")
