"""Differences between two identity documents, down to the config field, the input, the function or the package."""

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
    """Of the steps, where it is known that they are two."""


@dataclasses.dataclass(frozen=True)
class CodeChanged:
    """Definitions that the step function reaches."""

    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    old_fingerprint: str = dataclasses.field(default="", compare=False)
    new_fingerprint: str = dataclasses.field(default="", compare=False)
    """Under which both sources are kept. Not compared: one edit that two kinds of step share is one reason."""


@dataclasses.dataclass(frozen=True)
class DeclarationChanged:
    """Kind, policy, version or a package of the step."""

    what: str
    old: str
    new: str


Difference = FieldChanged | InputChanged | CodeChanged | DeclarationChanged


def differences(old: dict[str, Any], new: dict[str, Any]) -> tuple[Difference, ...]:
    """What makes `new` another identity than `old`, config first; of two schemas or two kinds, that they are two."""
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
    """Definitions that differ, whether or not they count under the step's policy."""
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
        # Of 1 and "1" one would hide the other, or the change from one to the other.
        are_words = all(isinstance(key, str) for key, _ in (*old[1:], *new[1:]))
        mine, others = ({key if are_words else json.dumps(key): item for key, item in node[1:]} for node in (old, new))
        yield from _mappings(mine, others, path, {})
    elif tags == ("list", "list") and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old[1:], new[1:], strict=True)):
            yield from _items(before, after, f"{path}.{index}")
    else:
        before, after = shown(old), shown(new)
        # What tells the two apart is never noise.
        texts = (before, after) if before != after else (json.dumps(old), json.dumps(new))
        yield FieldChanged(path or "config", *texts)


def _items(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Of two items of lists; a changed field of one that has a name is told with it, for nobody counts items."""
    name, new_name = _name(old), _name(new)
    for each in _values(old, new, path):
        if name and name == new_name and isinstance(each, FieldChanged) and ABSENT not in (each.old, each.new):
            each = dataclasses.replace(each, field=f"{each.field} ({name})")
        yield each


def _name(node: Any) -> str:
    """What an item is called; empty if it has no name."""
    name = dict(node[2:]).get("name") if _tag(node) in ("model", "dataclass", "namedtuple") else None
    return name if isinstance(name, str) else ""


def _shown_without(class_name: str) -> dict[str, str]:
    """What a class means where its document lacks a field, by field; nothing of one that this process does not know."""
    owner = class_named(class_name)
    has_fields = owner is not None and (issubclass(owner, BaseModel) or dataclasses.is_dataclass(owner))
    return (
        {name: "[]" if value == () else shown(value) for name, value in added_fields(owner).items()}
        if has_fields
        else {}
    )


def _mappings(old: dict[str, Any], new: dict[str, Any], path: str, absent: dict[str, str]) -> Iterator[Difference]:
    """`absent` says, by key, what is meant where there is none."""
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
    """Field of each input of a document, and the key of the record it reads."""
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
    """Top-level fields of the config of a document, and their values as a person would write them."""
    _, _, *fields = document["config"]
    return ((name, shown(value)) for name, value in fields)


def shown(node: Any) -> str:
    """A canonical value as a person would write it."""
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
    """Without the noise of binary arithmetic: 0.0050999999999999995 is 0.0051 to whoever wrote 1.7e-3 * 3."""
    text = f"{value:.12g}"
    if not math.isclose(float(text), value, rel_tol=1e-14, abs_tol=0.0):
        return repr(value)
    return text if any(mark in text for mark in ".en") else f"{text}.0"
