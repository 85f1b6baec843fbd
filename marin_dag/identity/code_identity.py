"""Code identity: a fingerprint over every first-party definition that a step function reaches, read from the source.

Nothing is imported to be fingerprinted: a plan must not wait for JAX. The unit is the definition, so that editing a
function moves the steps that reach it and no others, and so that a plan can name the function that changed.
"""

import dataclasses
import enum
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from marin_dag.code.closure import Closure, CodeError, Place, Sources
from marin_dag.code.references import Aspect
from marin_dag.graph.inputs import Input
from marin_dag.paused_collection import collection_paused
from marin_dag.values.fields import identity_fields
from marin_dag.values.members import PLAIN

if TYPE_CHECKING:
    from marin_dag.graph.step import Step

FIRST_PARTY = frozenset({"steps", "runtime", "pipelines"})
ENGINE = "marin_dag"
PROJECT_ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class CodeIdentity:
    """What the code of a step is."""

    policy: str
    version: str | None
    packages: dict[str, str]
    """Version of each third-party package that the kind names."""
    fingerprint: str
    definitions: dict[str, str]
    """Qualified name to hash, of every definition reached."""
    opaque: tuple[str, ...]
    """What the reading could not follow: a change behind it goes unseen."""

    def document(self) -> dict[str, Any]:
        """As stored with an output. The steps of one kind share its parts: nothing may change them."""
        return {
            "policy": self.policy,
            "version": self.version,
            "packages": self.packages,
            "fingerprint": self.fingerprint,
            "definitions": self.definitions,
            "opaque": list(self.opaque),
        }


def code_of(step: "Step[Any]") -> CodeIdentity:
    """Code identity of a step: its function's closure, and that of the classes whose instances its config holds."""
    closure = closure_of(step.kind.function, step.config)
    packages = {name: package_version(name, step.kind.name) for name in sorted(step.kind.packages)}
    return CodeIdentity(step.policy, step.version, packages, *closure)


@cache
def package_version(package: str, kind: str) -> str:
    """Installed version of a package that a kind names."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise CodeError(
            f"@step {kind}: package {package!r} is not installed, so its version cannot enter the identity; install "
            "it, or correct `packages=`."
        ) from None


def closure_of(function: Any, *values: object) -> Closure:
    """What `function` reaches when it is called with `values`, as the source stood when this process first asked."""
    return _closure_of(_where(function), frozenset(found for value in values for found in value_types(value)))


def closure_now(function: Any, *values: object) -> Closure:
    """As `closure_of`, and as the source stands now."""
    notice_edits()
    return closure_of(function, *values)


def notice_edits() -> None:
    """Makes this process read its sources again where a file has changed since it asked."""
    # A list: a step may tell its progress from another thread than the one that runs its shards.
    if any(not sources.is_current() for sources in list(_every_sources.values())):
        _every_sources.clear()
        _closure_of.cache_clear()


def value_types(value: object) -> Iterator[tuple[type, Aspect]]:
    """Classes whose methods a step can call on its config: those of the values, and of the results of its inputs.

    Values of `Runtime` fields are left out. They are execution, and another one must not move the fingerprint.
    """
    if type(value) in PLAIN:
        return
    match value:
        case Input():
            if value.result_type is not None:
                yield value.result_type, Aspect.INTERFACE
        case enum.Enum():
            yield type(value), Aspect.FULL
        case BaseModel():
            yield type(value), Aspect.VALUE
            for name in identity_fields(type(value)):
                yield from value_types(getattr(value, name))
            yield from value_types(value.__pydantic_extra__)
        case dict():
            for key, item in value.items():
                yield from value_types(key)
                yield from value_types(item)
        case tuple() if hasattr(value, "_fields"):
            yield type(value), Aspect.VALUE
            for item in value:
                yield from value_types(item)
        case list() | tuple() | set() | frozenset():
            for item in value:
                yield from value_types(item)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield type(value), Aspect.VALUE
            for name in identity_fields(type(value)):
                yield from value_types(getattr(value, name))


@cache
def _where(function: Any) -> tuple[Path, str, str]:
    """File, module and name of a function."""
    file = inspect.getsourcefile(inspect.unwrap(function))
    if file is None or not Path(file).is_file():
        raise CodeError(f"{function.__qualname__} has no source file here; define it in a module.")
    return Path(file), module_name(function), function.__qualname__


@cache
def _closure_of(where: tuple[Path, str, str], types: frozenset[tuple[type, Aspect]]) -> Closure:
    sources, places, unseen = _start_of(where, types)
    with collection_paused():
        closure = sources.closure(places)
    return closure._replace(opaque=tuple(sorted({*closure.opaque, *unseen})))


def source_of(step: "Step[Any]") -> dict[str, str]:
    """Readable source of every definition in the fingerprint, for people to compare."""
    sources, places, _ = _start_of(_where(step.kind.function), frozenset(value_types(step.config)))
    return sources.texts(places)


def _start_of(
    where: tuple[Path, str, str], types: frozenset[tuple[type, Aspect]]
) -> tuple[Sources, list[Place], list[str]]:
    """Where a closure begins, and which classes have no source to begin at."""
    file, module, name = where
    root, package = _root_of(file, module), module.partition(".")[0]
    if (root, package) not in _every_sources:
        _every_sources[root, package] = Sources((root, PROJECT_ROOT), FIRST_PARTY | {package} - {ENGINE})
    sources = _every_sources[root, package]
    sources.add_file(module, file)
    # The engine's own kind (`adopt`) computes nothing: no edit of the engine is a reason to bring data in again.
    places = [] if package == ENGINE else [Place(module, name.partition(".")[0], Aspect.VALUE)]
    unseen = []
    for item, aspect in types:
        home = module if item.__module__ == "__main__" else item.__module__
        if not sources.is_first_party(home):
            continue
        if "<locals>" in item.__qualname__:
            unseen.append(f"{home}.{item.__qualname__}: a class made while a function runs")
        else:
            # `Outer.Inner` is part of Outer, and the generic `Box[int]` is Box.
            places.append(Place(home, item.__qualname__.partition("[")[0].partition(".")[0], aspect))
    return sources, places, unseen


_every_sources: dict[tuple[Path, str], Sources] = {}
"""By root and package of the function; what one step has read, the next need not read again."""


@cache
def qualified_name(item: Any) -> str:
    """Module and name of a class or function, the same whether a pipeline is run as a script or imported."""
    return f"{module_name(item)}.{item.__qualname__}"


def module_name(item: Any) -> str:
    """Module of a function or class; a pipeline run as a script is `__main__`, but an import finds it by its path."""
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


def _root_of(file: Path, module: str) -> Path:
    levels = module.count(".") + (1 if file.name == "__init__.py" else 0)
    return file.resolve().parents[levels]
