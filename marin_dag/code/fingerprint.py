"""Fingerprint: a hash over every first-party definition that a function reaches, read from the source.

Nothing is imported to be fingerprinted: a plan must not wait for slow imports. The unit is the definition, so that
editing a function moves the steps that reach it and no others, and a plan can name the function that changed.
"""

import atexit
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from marin_dag.code.closure import Closure, Closures, Covered
from marin_dag.code.references import Aspect, Reference
from marin_dag.code.sources import ENGINE, CodeError, Place, Sources, searched_folders
from marin_dag.code.syntax import Target
from marin_dag.paused_collection import collection_paused
from marin_dag.values.fields import identity_fields
from marin_dag.values.walk import PLAIN, Form, form_of

FIRST_PARTY = frozenset({"steps", "runtime", "pipelines"})
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def closure_of(function: Any, *values: object) -> Closure:
    """Return what `function` reaches when called with `values`, as the source was when this process first asked."""
    return _closure_of(_where(function), value_types(*values))


def closure_now(function: Any, *values: object) -> Closure:
    """Return the same, as the source is now."""
    where = _where(function)
    _notice_edits([_closures_at(where)])
    return _closure_of(where, value_types(*values))


def covered_by(function: Any, *values: object) -> Covered:
    """Return the modules and files whose code the fingerprint of `function`, called with `values`, counts."""
    closures, places, _ = _start_of(_where(function), value_types(*values))
    return closures.covered(places)


def notice_edits() -> None:
    """Make this process read its sources again where a file has changed since it asked."""
    # A list: a step may report progress from another thread than the one that runs its shards.
    _notice_edits(list(_every_closures.values()))


def _notice_edits(closures: Iterable[Closures]) -> None:
    if any(not each.sources.is_current() for each in closures):
        _save_summaries()
        _every_closures.clear()
        _closure_of.cache_clear()


def source_of(function: Any, *values: object) -> dict[str, str]:
    """Return the readable source of every definition in the closure, for people to compare."""
    closures, places, _ = _start_of(_where(function), value_types(*values))
    return closures.texts(places)


def value_types(*values: Any) -> frozenset[tuple[type, Aspect]]:
    """Return the classes whose methods a step can call on its config: those of values, and of the results of inputs.

    Values of `Runtime` fields are omitted: they are execution, and a change of them must not change the fingerprint.
    """
    found: set[tuple[type, Aspect]] = set()
    pending = list(values)
    for value in pending:
        owner: Any = type(value)
        if owner in PLAIN:
            continue
        form = form_of(owner)
        if form is Form.REFERENCE:
            if value.result_type is not None:
                found.add((value.result_type, Aspect.FULL))
        elif form in (Form.MODEL, Form.DATACLASS):
            found.add((owner, Aspect.VALUE))
            pending += [getattr(value, name) for name in identity_fields(owner)]
            pending += (getattr(value, "__pydantic_extra__", None) or {}).values()
        elif form is Form.MAPPING:
            pending += [*value, *value.values()]
        elif form in (Form.SEQUENCE, Form.SET, Form.NAMEDTUPLE):
            pending += value
        if form in (Form.ENUM, Form.NAMEDTUPLE):
            found.add((owner, Aspect.FULL if form is Form.ENUM else Aspect.VALUE))
    return frozenset(found)


Where = tuple[Path, str, str, bool]
"""File, module and name of a function, and whether it keeps variables of a function around it."""


@cache
def _where(function: Any) -> Where:
    file = inspect.getsourcefile(inspect.unwrap(function))
    if file is None or not Path(file).is_file():
        raise CodeError(f"{function.__qualname__} has no source file here; define it in a module.")
    keeps = bool(inspect.unwrap(function).__code__.co_freevars)
    return Path(file), module_name(function), function.__qualname__, keeps


@cache
def _closure_of(where: Where, types: frozenset[tuple[type, Aspect]]) -> Closure:
    closures, places, unseen = _start_of(where, types)
    with collection_paused():
        closure = closures.closure(places)
    return closure._replace(opaque=tuple(sorted({*closure.opaque, *unseen})))


def _start_of(where: Where, types: frozenset[tuple[type, Aspect]]) -> tuple[Closures, list[Place], list[str]]:
    """Return where a closure begins, and which classes have no source to begin at."""
    file, module, name, is_kept = where
    package = module.partition(".")[0]
    closures = _closures_at(where)
    sources = closures.sources
    sources.add_file(module, file)
    # The engine's own kind (`adopt`) computes nothing: no edit of the engine is a reason to adopt data again.
    places = [] if package == ENGINE else [Place(module, name.partition(".")[0], Aspect.VALUE)]
    unseen = []
    if is_kept:  # by what the module makes it with, at least
        places += sources.resolve(Reference(Target(module, None), (), Aspect.FULL), set())
        unseen.append(f"{module}.{name}: values that a function around it keeps for it")
    for item, aspect in types:
        home = module if item.__module__ == "__main__" else item.__module__
        if not sources.is_first_party(home):
            continue
        if "<locals>" in item.__qualname__:
            unseen.append(f"{home}.{item.__qualname__}: a class made while a function runs")
        else:
            # `Outer.Inner` is part of Outer, and the generic `Box[int]` is Box.
            places.append(Place(home, item.__qualname__.partition("[")[0].partition(".")[0], aspect))
    return closures, places, unseen


def _closures_at(where: Where) -> Closures:
    """Return the closures of all functions of one package below one root."""
    file, module, _, _ = where
    roots, package = (_root_of(file, module), PROJECT_ROOT, *searched_folders()), module.partition(".")[0]
    if (roots, package) not in _every_closures:
        _every_closures[roots, package] = Closures(Sources(roots, FIRST_PARTY | {package} - {ENGINE}))
    return _every_closures[roots, package]


_every_closures: dict[tuple[tuple[Path, ...], str], Closures] = {}
"""Closures by roots and package of a function, so that each file is read once."""


@atexit.register
def _save_summaries() -> None:
    for closures in list(_every_closures.values()):
        closures.sources.save()


@cache
def qualified_name(item: Any) -> str:
    """Return module and name of a class or function, the same for a pipeline run as a script and imported."""
    return f"{module_name(item)}.{item.__qualname__}"


def module_name(item: Any) -> str:
    """Return the module of a function or class; for a script, which is `__main__`, the name an import finds it by."""
    if item.__module__ != "__main__":
        return str(item.__module__)
    if hasattr(item, "__code__"):
        return _module_of_script(item.__code__.co_filename)
    return _module_of_script(getattr(sys.modules["__main__"], "__file__", None) or "__main__.py")


@cache
def _module_of_script(filename: str) -> str:
    file = Path(filename).resolve()
    if file.is_relative_to(PROJECT_ROOT):
        return ".".join(file.relative_to(PROJECT_ROOT).with_suffix("").parts)
    return file.stem


@cache
def _root_of(file: Path, module: str) -> Path:
    levels = module.count(".") + (1 if file.name == "__init__.py" else 0)
    return file.resolve().parents[levels]
