"""Former: the config that a record was made with, rebuilt from the identity document that lies beside the output."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record
from marin_dag.values.fields import added_fields, class_named, identity_fields


class _UnknownError(Exception):
    """A value that today's program cannot hold, or whose document does not say enough."""


def former_config(step: Step[Any], record: Record) -> BaseModel | None:
    """The config of `record`, in the types that `step` has now; None where it cannot be rebuilt in them.

    What no document says is as it is now: execution, and fields that were added since; but for those that are typed
    `Added`, of which a document without them says what they meant.
    """
    stop, start = step.kind.stop_field, step.predecessor
    leg = {} if stop is None else {stop: record.milestone}
    if start is not None and step.kind.continues is not None and start.digest == step.digest:
        # It goes on unchanged, so that the document is that of its trajectory's first leg.
        leg[step.kind.continues] = getattr(step.config, step.kind.continues)
    try:
        config = _value(record.identity["config"], step.config, leg)
    except _UnknownError:
        return None
    return config if isinstance(config, step.kind.config_type) else None


def _value(node: Any, now: Any, more: Mapping[str, Any] | None = None) -> Any:
    """The value behind a canonical node; `now` is what stands in its place today, None if nothing does."""
    match node:
        case None if isinstance(now, OutputRef):
            raise _UnknownError  # the first leg's document, perhaps, which does not say where this one began
        case None | bool() | int() | float() | str():
            return node
        case ["input", str(), milestone, str(subpath)] if isinstance(now, OutputRef):
            return OutputRef(now.step, at=milestone, subpath=subpath)
        case ["model" | "dataclass", str(name), *fields]:
            return _object(class_named(name), dict(fields), now, more or {})
        case ["list", *items]:
            inner = list(now) if isinstance(now, list | tuple) else []
            return [_value(item, inner[i] if i < len(inner) else None) for i, item in enumerate(items)]
        case ["dict", *items]:
            known = now if isinstance(now, dict) else {}
            keys = [_value(key, None) for key, _ in items]
            if any(isinstance(key, list | dict) for key in keys):
                raise _UnknownError
            return {key: _value(item, known.get(key)) for key, (_, item) in zip(keys, items, strict=True)}
        case ["enum", str(name), str(member)]:
            owner = class_named(name)
            if owner is not None and issubclass(owner, Enum) and member in owner.__members__:
                return owner[member]
    raise _UnknownError


def _object(owner: type | None, fields: Mapping[str, Any], now: Any, more: Mapping[str, Any]) -> Any:
    if owner is None or not (issubclass(owner, BaseModel) or dataclasses.is_dataclass(owner)):
        raise _UnknownError
    today = _fields_of(now) if type(now) is owner else {}
    known = set(identity_fields(owner))
    former = {name: _value(node, today.get(name)) for name, node in fields.items() if name in known - more.keys()}
    try:
        return owner(**{**today, **added_fields(owner), **former, **more})
    except (ValueError, TypeError, UserError) as error:  # today's program refuses what was allowed then
        raise _UnknownError from error


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
