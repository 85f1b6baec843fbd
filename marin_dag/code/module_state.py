"""Module state: globals of modules that this process has changed since they were imported.

A recipe or an earlier import may set a constant, change a list in place or patch a function of a step's module. No
digest covers such a change, and a worker in another process does not have it. This module therefore records the globals
of each module when its import ends, and compares them when a step starts.
"""

import collections
import dataclasses
import functools
import importlib.machinery
import sys
import zlib
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from marin_dag.code.sources import ENGINE, is_of_environment

_SCALARS = frozenset({bool, bytes, complex, float, int, str, type(None)})
_MAX_DEPTH = 6
_MAX_BUFFER_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class _Noted:
    """Globals of a module at the end of its import."""

    values: dict[str, object]
    """The objects, kept alive so that Python reuses none of the identifiers in `contents`."""
    contents: dict[str, object]
    """Contents of the objects that can change in place; empty for installed modules."""


_noted: dict[str, _Noted] = {}


def watch_imports() -> None:
    """Record the globals of all imported modules, and of each later module at the end of its import."""
    if any(isinstance(each, _Finder) for each in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if getattr(spec, "_initializing", False):
            spec.__class__ = _Spec
        elif spec is not None:
            _note(name)


def changed_globals() -> set[str]:
    """Return the dotted names of recorded globals that were replaced or changed in place."""
    return {f"{name}.{changed}" for name in list(_noted) for changed in _changed_in(name)}


def accept_changes(before: set[str]) -> None:
    """Record the changes that a step made itself: all but `before`, which were there at its start."""
    for changed in changed_globals() - before:
        module, _, name = changed.rpartition(".")
        value = vars(sys.modules[module])[name]
        _noted[module].values[name] = value
        _noted[module].contents[name] = _content(value, _home(module))


def _changed_in(name: str) -> Iterator[str]:
    noted, now = _noted[name], vars(sys.modules[name]) if name in sys.modules else {}
    for each, value in noted.values.items():
        is_replaced = each in now and now[each] is not value and not _are_equal_scalars(now[each], value)
        is_changed = each in noted.contents and noted.contents[each] != _content(value, _home(name))
        if is_replaced or (each in now and is_changed):
            yield each


def _are_equal_scalars(one: object, other: object) -> bool:
    return type(one) is type(other) and type(one) in _SCALARS and repr(one) == repr(other)


class _Finder:
    """Import hook that finds no module; it makes other finders' specifications record globals after the import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and (spec := find(name, path, target)) is not None:
                if type(spec) is importlib.machinery.ModuleSpec:
                    spec.__class__ = _Spec
                return spec
        return None


class _Spec(importlib.machinery.ModuleSpec):
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:  # set by the import system after the module has run
            _note(self.name)


def _note(name: str) -> None:
    module = sys.modules.get(name)
    if not isinstance(module, ModuleType) or name == "__main__" or name.partition(".")[0] == ENGINE:
        return
    values = {each: value for each, value in list(vars(module).items()) if not each.startswith("__")}
    file = getattr(module, "__file__", None)
    contents = {}
    if file is not None and not is_of_environment(file):
        found = ((each, _content(value, _home(name))) for each, value in values.items())
        contents = {each: content for each, content in found if content is not None}
    _noted[name] = _Noted(values, contents)


def _home(name: str) -> str:
    return name.partition(".")[0]


def _content(value: object, home: str, depth: int = 0) -> object:
    """Return the mutable content of an object, followed below the package `home`; None for immutable ones."""
    if depth > _MAX_DEPTH or isinstance(value, ModuleType):
        return None
    kind = type(value)
    if kind in _SCALARS:
        return (kind, repr(value)) if depth else None
    inner = functools.partial(_item, home=home, depth=depth + 1)
    if isinstance(value, dict | collections.ChainMap):
        return [(inner(key), inner(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | collections.deque):
        return list(map(inner, value))
    if isinstance(value, set | frozenset):
        return collections.Counter(map(repr, map(inner, value)))
    if isinstance(value, FunctionType):
        defaults = inner(value.__defaults__ or ()), inner(value.__kwdefaults__ or {})
        return id(value.__code__), defaults, inner(vars(value))
    if isinstance(value, type):
        own = value.__module__.partition(".")[0] == home
        return {name: inner(each) for name, each in vars(value).items() if _is_stable(name, each)} if own else None
    if kind.__module__.partition(".")[0] == home and hasattr(value, "__dict__"):
        return {name: inner(each) for name, each in vars(value).items() if _is_stable(name, getattr(kind, name, None))}
    return _checksum(value)


def _item(value: object, home: str, depth: int) -> object:
    content = _content(value, home, depth)
    return content if type(value) in (*_SCALARS, dict, list, set, tuple) else (id(value), content)


def _is_stable(name: str, value: object) -> bool:
    """Return whether an attribute is no cache of Python or of a package."""
    is_hidden = name.startswith("_") and name.endswith("_") and not isinstance(value, FunctionType)
    return not is_hidden and not isinstance(value, functools.cached_property)


def _checksum(value: Any) -> int | None:
    try:
        view = memoryview(value)
    except TypeError:
        return None
    return zlib.crc32(view.tobytes()) if view.nbytes <= _MAX_BUFFER_BYTES else None
