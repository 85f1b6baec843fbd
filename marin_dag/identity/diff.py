"""Differences between two identity documents: config fields, inputs, definitions, packages."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from marin_dag.values.fields import added_fields, class_named

ABSENT = "(absent)"


@dataclasses.dataclass(frozen=True)
class FieldChanged:
    """A config field has another value."""

    field: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class InputChanged:
    """An input is another output: of another identity, or at another milestone."""

    field: str
    old_key: str
    new_key: str
    old_name: str = ""
    new_name: str = ""
    """Names of the steps, where they are known to be two."""


@dataclasses.dataclass(frozen=True)
class CodeChanged:
    """Definitions that the step function reaches changed."""

    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    old_fingerprint: str = dataclasses.field(default="", compare=False)
    new_fingerprint: str = dataclasses.field(default="", compare=False)
    """Keys of both sources in the archive. Not compared: one edit that two kinds of step share is one reason."""


@dataclasses.dataclass(frozen=True)
class DeclarationChanged:
    """Kind, policy, version or a package of the step changed."""

    what: str
    old: str
    new: str


Difference = FieldChanged | InputChanged | CodeChanged | DeclarationChanged


def differences(old: dict[str, Any], new: dict[str, Any]) -> tuple[Difference, ...]:
    """Return what makes `new` another identity than `old`, config first; only the schemas or kinds if those differ."""
    if old["schema"] != new["schema"]:
        return (DeclarationChanged("identity schema", str(old["schema"]), str(new["schema"])),)
    if old["kind"] != new["kind"]:
        return (DeclarationChanged("kind", old["kind"], new["kind"]),)
    return (
        *_declarations(old, new),
        *_values(old["config"], new["config"], ""),
        *([code] if _code_counts(old, new) and (code := code_difference(old, new)) else []),
    )


def code_difference(old: dict[str, Any], new: dict[str, Any]) -> CodeChanged | None:
    """Return the definitions that differ, whether or not they count under the step's policy; None if none do."""
    before, after = old["code"]["definitions"], new["code"]["definitions"]
    if old["code"]["fingerprint"] == new["code"]["fingerprint"]:
        return None
    changed = tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name]))
    return CodeChanged(
        changed,
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        old["code"]["fingerprint"],
        new["code"]["fingerprint"],
    )


def _code_counts(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return "tracked" in (old["code"]["policy"], new["code"]["policy"])


def _declarations(old: dict[str, Any], new: dict[str, Any]) -> Iterator[DeclarationChanged]:
    for what in ("policy", "version"):
        if old["code"][what] != new["code"][what] and (what == "policy" or not _code_counts(old, new)):
            yield DeclarationChanged(what, str(old["code"][what]), str(new["code"][what]))
    before, after = old["code"]["packages"], new["code"]["packages"]
    for package in sorted(before.keys() | after.keys()):
        if before.get(package) != after.get(package):
            yield DeclarationChanged(f"package {package}", before.get(package, ABSENT), after.get(package, ABSENT))


def _values(old: Any, new: Any, path: str) -> Iterator[Difference]:
    if json.dumps(old) == json.dumps(new):  # as texts: 1, 1.0 and True are equal to `==`
        return
    tags = (_tag(old), _tag(new))
    if tags == ("input", "input") and _input_key(old) == _input_key(new):
        yield FieldChanged(f"{path} (folder)", json.dumps(old[3]), json.dumps(new[3]))
    elif tags == ("input", "input"):
        yield InputChanged(path, _input_key(old), _input_key(new))
    elif tags[0] == tags[1] and tags[0] in ("model", "dataclass", "namedtuple") and old[1] == new[1]:
        yield from _mappings(dict(old[2:]), dict(new[2:]), path, _shown_without(old[1]))
    elif tags == ("dict", "dict"):
        # As JSON where a key is no text: 1 and "1" are two keys.
        are_words = all(isinstance(key, str) for key, _ in (*old[1:], *new[1:]))
        mine, others = ({key if are_words else json.dumps(key): item for key, item in node[1:]} for node in (old, new))
        yield from _mappings(mine, others, path, {})
    elif tags == ("list", "list") and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old[1:], new[1:], strict=True)):
            yield from _items(before, after, f"{path}.{index}")
    elif tags == ("list", "list") and _are_in_order(mine := _by_name(old), others := _by_name(new)):
        yield from _mappings(mine, others, path, {})
    else:
        before, after = shown(old), shown(new)
        # A difference between the two values is never noise.
        texts = (before, after) if before != after else (json.dumps(old), json.dumps(new))
        yield FieldChanged(path or "config", *texts)


def _items(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Yield the differences of two items of lists; a field of an item that has a name comes with that name."""
    name, new_name = _name(old), _name(new)
    for each in _values(old, new, path):
        if name and name == new_name and isinstance(each, FieldChanged) and ABSENT not in (each.old, each.new):
            each = dataclasses.replace(each, field=f"{each.field} ({name})")
        yield each


def _by_name(node: Any) -> dict[str, Any]:
    """Return the items of a list by their names; {} where an item has none, or two have the same."""
    found = {_name(item): item for item in node[1:]}
    return found if "" not in found and len(found) == len(node) - 1 else {}


def _are_in_order(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether two lists have names in common, in the same order."""
    shared = [name for name in old if name in new]
    return bool(shared) and shared == [name for name in new if name in old]


def _name(node: Any) -> str:
    name = dict(node[2:]).get("name") if _tag(node) in ("model", "dataclass", "namedtuple") else None
    return name if isinstance(name, str) else ""


def _shown_without(class_name: str) -> dict[str, str]:
    """Return what a class means where its document lacks a field, by field; {} for a class not imported here."""
    owner = class_named(class_name)
    has_fields = owner is not None and (issubclass(owner, BaseModel) or dataclasses.is_dataclass(owner))
    return (
        {name: "[]" if value == () else shown(value) for name, value in added_fields(owner).items()}
        if has_fields
        else {}
    )


def _mappings(old: dict[str, Any], new: dict[str, Any], path: str, absent: dict[str, str]) -> Iterator[Difference]:
    """Yield the differences of two mappings; `absent` has by key what is meant where the key is missing."""
    for key in sorted(old.keys() | new.keys()):
        inner = f"{path}.{key}" if path else key
        if key not in old:
            yield FieldChanged(inner, absent.get(key, ABSENT), shown(new[key]))
        elif key not in new:
            yield FieldChanged(inner, shown(old[key]), absent.get(key, ABSENT))
        else:
            yield from _values(old[key], new[key], inner)


def _tag(node: Any) -> str:
    return node[0] if isinstance(node, list) and node else ""


def _input_key(node: Any) -> str:
    _, digest, milestone, _ = node
    return str(digest) if milestone is None else f"{digest}@{milestone}"


def input_keys(document: dict[str, Any]) -> dict[str, str]:
    """Return the field of each input of a document, and the key of the record that it reads."""
    return dict(_inputs(document["config"], ""))


def _inputs(node: Any, path: str) -> Iterator[tuple[str, str]]:
    match _tag(node):
        case "input":
            yield path, _input_key(node)
        case "model" | "dataclass" | "namedtuple":
            for name, item in node[2:]:
                yield from _inputs(item, f"{path}.{name}" if path else name)
        case "dict":
            for key, item in node[1:]:
                yield from _inputs(item, f"{path}.{key if isinstance(key, str) else json.dumps(key)}")
        case "list":
            for index, item in enumerate(node[1:]):
                yield from _inputs(item, f"{path}.{index}")


def config_fields(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the top-level fields of the config of a document, and their values as a user writes them."""
    _, _, *fields = document["config"]
    return ((name, shown(value)) for name, value in fields)


def shown(node: Any) -> str:
    match node:
        case ["model" | "dataclass" | "namedtuple", str(name), *fields]:
            return f"{name.rpartition('.')[2]}({', '.join(f'{key}={shown(item)}' for key, item in fields)})"
        case ["dict", *items]:
            return "{" + ", ".join(f"{shown(key)}: {shown(item)}" for key, item in items) + "}"
        case ["list" | "set", *items]:
            return "[" + ", ".join(shown(item) for item in items) + "]"
        case ["enum", str(name), value]:
            return f"{name.rpartition('.')[2]}.{value}"
        case ["input", str(digest), None, str()]:
            return digest[:8]
        case ["input", str(digest), milestone, str()]:
            return f"{digest[:8]}@{milestone}"
        case [str(), *values]:
            return " ".join(str(value) for value in values)
        case list():
            return str(node)
        case float():
            return _short(node)
    return json.dumps(node, ensure_ascii=False)


def _short(value: float) -> str:
    """Return a number without the noise of binary arithmetic: 1.7e-3 * 3 is 0.0051, not 0.0050999999999999995."""
    text = f"{value:.12g}"
    if not math.isclose(float(text), value, rel_tol=1e-14, abs_tol=0.0):
        return repr(value)
    return text if any(mark in text for mark in ".en") else f"{text}.0"
