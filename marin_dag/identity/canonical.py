"""Identity: canonical documents and their digests; equal values give equal bytes, in every process."""

import dataclasses
import datetime
import decimal
import hashlib
import json
import math
from collections.abc import Iterable
from enum import Enum, Flag
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input, inputs_in
from marin_dag.identity.code_identity import CodeIdentity, code_of, module_name, qualified_name
from marin_dag.store.redact import redact_field, redact_identity
from marin_dag.values.fields import added_fields, identity_fields, once_fields

if TYPE_CHECKING:
    from marin_dag.graph.step import Step

SCHEMA_VERSION = 2
"""Counts changes of how a document or a fingerprint is made, each of which moves every digest; see migrations.py."""


_PLAIN = frozenset({type(None), bool, int, str})


class NotCanonicalError(UserError, TypeError):
    """A value that has no one form, with its path and the cure."""

    def __init__(self, path: str, value: object, cure: str) -> None:
        super().__init__(f"{path}: {type(value).__qualname__} {value!r} has no canonical form; {cure}.")


class Identity(NamedTuple):
    """What a step is. `document` is stored with the output; of a versioned step it says more than the digest covers."""

    digest: str
    document: dict[str, Any]


def identity_of(step: "Step[Any]") -> Identity:
    """The identity of `step`: its trajectory's, where it changes nothing but the point at which it stops."""
    code = code_of(step)
    config = canonical(step.config, step.name)
    start = step.predecessor
    if start is not None and not start.subpath and _continues_unchanged(step, start.step):
        return start.step.computed_identity
    kind = f"{module_name(step.kind.function)}.{step.kind.name}"
    document = {"schema": SCHEMA_VERSION, "kind": kind, "code": code.document(), "config": config}
    return Identity(digest_of_document(document), document)


def digest_of_document(document: dict[str, Any]) -> str:
    """SHA-256 of what counts of a stored document: of a versioned step's code only the version does."""
    code = document["code"]
    counted = (
        ("policy", "version", "packages") if code["policy"] == "versioned" else ("policy", "fingerprint", "packages")
    )
    return sha256({**document, "code": {name: code[name] for name in counted}})


def sha256(document: Any) -> str:
    """Digest of JSON data: keys sorted, no spaces, ASCII."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def canonical(value: object, path: str) -> Any:
    """`value` as JSON data; containers carry a tag, so that no two kinds of value coincide.

    1, 1.0, True and "1" differ, and so do 0.0 and -0.0, and Decimal("1.5") and Decimal("1.50"), which print
    differently. A tuple is a list, an aware time its instant, a numpy scalar its Python value. Classes count by module
    and name. A secret leaves its fingerprint, a URL's credentials nothing. `path` names the value in errors.
    """
    if type(value) is str:
        return redact_identity(value)
    if type(value) in _PLAIN:
        return value
    match value:
        case float() if type(value) is float:
            if not math.isfinite(value):
                raise NotCanonicalError(
                    path, value, "write a finite number, or None for 'not set' where that is allowed"
                )
            return value
        case Enum():  # before what it may be as well: a StrEnum is not its text
            return ["enum", qualified_name(type(value)), value.value if isinstance(value, Flag) else value.name]
        case Input():
            return ["input", value.digest, value.milestone, value.subpath]
        case BaseModel():
            extra = value.__pydantic_extra__ or {}
            _refuse_inputs(extra.values(), path, "declare the field, so that the graph has the edge")
            return _fields("model", value, path, extra, is_frozen=bool(value.model_config.get("frozen")))
        case tuple() if hasattr(value, "_fields"):
            items = ([name, canonical(getattr(value, name), f"{path}.{name}")] for name in value._fields)
            return ["namedtuple", qualified_name(type(value)), *items]
        case list() | tuple() if type(value) in (list, tuple):
            return ["list", *(canonical(item, f"{path}[{index}]") for index, item in enumerate(value))]
        case dict() if type(value) is dict:
            _refuse_inputs(value, f"{path} key", "make it a value of the mapping")
            items = ([canonical(key, f"{path} key"), _named(key, item, path)] for key, item in value.items())
            return ["dict", *sorted(items, key=lambda item: json.dumps(item[0]))]
        case set() | frozenset() if type(value) in (set, frozenset):
            _refuse_inputs(value, f"{path} item", "use a tuple")
            return ["set", *sorted((canonical(item, f"{path} item") for item in value), key=json.dumps)]
        case bytes() if type(value) is bytes:
            return ["bytes", value.hex()]
    return _canonical_of_rarer(value, path)


def _canonical_of_rarer(value: object, path: str) -> Any:
    match value:
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return _fields("dataclass", value, path, {}, is_frozen=frozen)
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


def _refuse_inputs(values: Iterable[Any], path: str, cure: str) -> None:
    """Refuses a step where the graph does not look for one, so that it would be waited for by nobody."""
    for _, item in inputs_in(list(values)):
        raise NotCanonicalError(path, item, cure)


def _named(name: object, value: object, path: str) -> Any:
    """A value under its name, which may say that it is a secret."""
    if type(value) is str and type(name) is str:
        return redact_field(name, value)
    return canonical(value, f"{path}.{name}")


def _continues_unchanged(step: "Step[Any]", predecessor: "Step[Any]") -> bool:
    """Whether `step` changes nothing of the trajectory it starts from, so that it is that trajectory.

    A `Once` field acts where a leg begins: any value but its default begins a new trajectory there, and what the
    predecessor did at its own beginning does not matter here.
    """
    if step.kind is not predecessor.kind or code_of(step).document() != code_of(predecessor).document():
        return False
    config_type: Any = step.kind.config_type
    once = once_fields(config_type)
    for name in identity_fields(config_type):
        if name == step.kind.continues:
            continue
        own = canonical(getattr(step.config, name), f"{step.name}.{name}")
        other = once[name] if name in once else getattr(predecessor.config, name)
        if own != canonical(other, f"{predecessor.name}.{name}"):
            return False
    return True


__all__ = ["CodeIdentity", "Identity", "NotCanonicalError", "canonical", "digest_of_document", "identity_of", "sha256"]
