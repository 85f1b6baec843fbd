"""Code identity: a fingerprint over every first-party definition that a step function reaches, read from the source.

Nothing is imported to be fingerprinted: a plan must not wait for JAX. The unit is the definition, so that editing a
function moves the steps that reach it and no others, and so that a plan can name the function that changed.
"""

import ast
import dataclasses
import enum
import hashlib
import importlib.metadata
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.inputs import Input
from marin_dag.references import Aspect, Reference, Scanned, scan, source_text
from marin_dag.syntax import Module, Target, parse_module

if TYPE_CHECKING:
    from marin_dag.step import Step

FIRST_PARTY = frozenset({"steps", "runtime", "pipelines"})
PROJECT_ROOT = Path(__file__).resolve().parent.parent
EFFECTS = "<module>"


class CodeError(UserError):
    """Source that a fingerprint needs and cannot have."""


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
        # Not dataclasses.asdict: its deep copy of the definitions is half the cost of planning a large graph.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {
            "opaque": list(self.opaque)
        }


class Place(NamedTuple):
    """A definition and how much of it counts."""

    module: str
    name: str
    aspect: Aspect


def code_of(step: "Step[Any]") -> CodeIdentity:
    """Code identity of a step: its function's closure, and that of the classes whose instances its config holds."""
    closure = _closure_of(step.kind.function, frozenset(value_types(step.config)))
    packages = {name: package_version(name, step.kind.name) for name in sorted(step.kind.packages)}
    return CodeIdentity(step.policy, step.version, packages, *closure)


def source_of(step: "Step[Any]") -> dict[str, str]:
    """Normalised source of every definition in the fingerprint, for people to compare."""
    sources, start = _start_of(step.kind.function, frozenset(value_types(step.config)))
    return sources.texts(start)


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


def value_types(value: object) -> Iterator[tuple[type, Aspect]]:
    """Classes whose methods a step can call on its config: those of the values, and of the results of its inputs."""
    match value:
        case Input():
            if value.has_step:
                yield value.step.kind.result_type, Aspect.INTERFACE
        case enum.Enum():
            yield type(value), Aspect.FULL
        case BaseModel():
            yield type(value), Aspect.VALUE
            for name in type(value).model_fields:
                yield from value_types(getattr(value, name))
        case dict():
            for item in value.values():
                yield from value_types(item)
        case list() | tuple() | set() | frozenset():
            for item in value:
                yield from value_types(item)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield type(value), Aspect.VALUE
            for field in dataclasses.fields(value):
                yield from value_types(getattr(value, field.name))


@cache
def _closure_of(function: Any, types: frozenset[tuple[type, Aspect]]) -> tuple[str, dict[str, str], tuple[str, ...]]:
    sources, start = _start_of(function, types)
    return sources.closure(start)


def _start_of(function: Any, types: frozenset[tuple[type, Aspect]]) -> tuple["Sources", list[Place]]:
    file = inspect.getsourcefile(function)
    if file is None or not Path(file).is_file():
        raise CodeError(f"step function {function.__qualname__} has no source file; define it in a module.")
    module = module_name(function)
    sources = _sources(_root_of(Path(file), module), module.partition(".")[0])
    sources.add_file(module, Path(file))
    start = [Place(module, function.__qualname__, Aspect.VALUE)]
    for item, aspect in types:
        name = module if item.__module__ == "__main__" else item.__module__
        if sources.is_first_party(name) and "<locals>" not in item.__qualname__:
            start.append(Place(name, item.__qualname__.partition(".")[0], aspect))
    return sources, start


def module_name(function: Any) -> str:
    """Module of a function; a pipeline run as a script is `__main__`, but its functions are what an import finds."""
    if function.__module__ != "__main__":
        return str(function.__module__)
    return _module_of_script(function.__code__.co_filename)


@cache
def _module_of_script(filename: str) -> str:
    file = Path(filename).resolve()
    if file.is_relative_to(PROJECT_ROOT):
        return ".".join(file.relative_to(PROJECT_ROOT).with_suffix("").parts)
    return file.stem


def _root_of(file: Path, module: str) -> Path:
    levels = module.count(".") + (1 if file.name == "__init__.py" else 0)
    return file.resolve().parents[levels]


@cache
def _sources(root: Path, package: str) -> "Sources":
    return Sources((root, PROJECT_ROOT), FIRST_PARTY | {package})


class Sources:
    """Modules read so far, each file once a process."""

    def __init__(self, roots: Iterable[Path], first_party: frozenset[str]) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._first_party = first_party
        self._modules: dict[str, Module | None] = {}
        self._scanned: dict[Place, Scanned] = {}
        self._resolved: dict[Reference, tuple[Place, ...]] = {}

    def is_first_party(self, module: str) -> bool:
        return module.partition(".")[0] in self._first_party

    def add_file(self, name: str, path: Path) -> None:
        if name not in self._modules:
            self._modules[name] = parse_module(name, path)

    def module(self, name: str) -> Module | None:
        """The parsed module, or None where there is no such source file (a folder without `__init__` included)."""
        if name not in self._modules:
            self._modules[name] = None
            relative = Path(*name.split("."))
            for candidate in (
                c for root in self._roots for c in (root / relative / "__init__.py", root / f"{relative}.py")
            ):
                if candidate.is_file():
                    self._modules[name] = parse_module(name, candidate)
                    break
        return self._modules[name]

    def closure(self, start: Iterable[Place]) -> tuple[str, dict[str, str], tuple[str, ...]]:
        """Fingerprint, definitions with their hashes, and what stayed opaque."""
        seen, opaque = self._reached(start)
        definitions = {name: self._scanned[place].digest[:16] for name, place in _widest(seen).items()}
        text = "\n".join(f"{name} {digest}" for name, digest in definitions.items())
        text += "".join(f"\n? {line}" for line in sorted(opaque))
        return hashlib.sha256(text.encode()).hexdigest(), definitions, tuple(sorted(opaque))

    def texts(self, start: Iterable[Place]) -> dict[str, str]:
        """Name to normalised source of each definition that `start` reaches."""
        seen, _ = self._reached(start)
        return {name: self._text(place) for name, place in _widest(seen).items()}

    def _text(self, place: Place) -> str:
        module = self.module(place.module)
        assert module is not None
        return source_text(module, self._syntax(module, place.name), place.aspect)

    def _reached(self, start: Iterable[Place]) -> tuple[set[Place], set[str]]:
        pending = list(start)
        seen: set[Place] = set()
        opaque: set[str] = set()
        modules: set[str] = set()
        while pending:
            place = pending.pop()
            if place in seen:
                continue
            seen.add(place)
            if place.module not in modules:
                modules.add(place.module)
                pending.extend(self._effects(place.module))
            scanned = self._scan(place)
            opaque.update(scanned.opaque)
            for reference in scanned.references:
                pending.extend(self._resolve(reference, opaque))
        return seen, opaque

    def _effects(self, module: str) -> list[Place]:
        """What importing the module does, and its packages: statements that define nothing."""
        parts = module.split(".")
        names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        found = [(name, self.module(name)) for name in names]
        return [Place(name, EFFECTS, Aspect.FULL) for name, parsed in found if parsed is not None and parsed.effects]

    def _scan(self, place: Place) -> Scanned:
        if place not in self._scanned:
            module = self.module(place.module)
            assert module is not None
            statements = self._syntax(module, place.name)
            self._scanned[place] = scan(module, place.name, statements, place.aspect)
        return self._scanned[place]

    @staticmethod
    def _syntax(module: Module, name: str) -> list[ast.stmt]:
        return module.effects if name == EFFECTS else _statements(module, name)

    def _resolve(self, reference: Reference, opaque: set[str]) -> tuple[Place, ...]:
        if reference not in self._resolved:
            missing: list[str] = []
            self._resolved[reference] = tuple(self._places(reference, missing))
            if missing:
                # Not remembered: every closure that meets it must say so.
                places = self._resolved.pop(reference)
                opaque.update(missing)
                return places
        return self._resolved[reference]

    def _places(self, reference: Reference, missing: list[str]) -> Iterator[Place]:
        (name, attribute, is_certain), chain, aspect = reference
        if not self.is_first_party(name):
            return
        if attribute is not None:
            chain = (attribute, *chain)
        module = self.module(name)
        if not chain:
            yield from self._whole(name, module, aspect)
            return
        head, rest = chain[0], chain[1:]
        if module is not None and head in module.definitions:
            yield Place(name, head, aspect)
        for target in module.imports.get(head, ()) if module is not None else ():
            yield from self._places(Reference(target, rest, aspect), missing)
        if module is not None and (head in module.definitions or head in module.imports):
            return
        if self._is_module(f"{name}.{head}"):
            yield from self._places(Reference(Target(f"{name}.{head}", None), rest, aspect), missing)
            return
        for star in module.star_imports if module is not None else ():
            yield from self._places(Reference(Target(star, head, is_certain=False), rest, aspect), missing)
        if is_certain and (module is None or not module.star_imports) and not head.startswith("__"):
            missing.append(f"{name}.{head}: not found in the source")

    def _whole(self, name: str, module: Module | None, aspect: Aspect) -> Iterator[Place]:
        """A module used as a value, or imported for what the import does: all of it counts."""
        if module is not None:
            yield from (Place(name, definition, aspect) for definition in module.definitions)

    def _is_module(self, name: str) -> bool:
        relative = Path(*name.split("."))
        return self.module(name) is not None or any((root / relative).is_dir() for root in self._roots)


def _widest(places: Iterable[Place]) -> dict[str, Place]:
    """Definition to the place that counts most of it, by name."""
    widest: dict[str, Place] = {}
    for place in sorted(places):  # by aspect last, so that the widest of a name wins
        widest[f"{place.module}.{place.name}"] = place
    return dict(sorted(widest.items()))


def _statements(module: Module, name: str) -> list[ast.stmt]:
    try:
        return module.definitions[name.partition(".")[0]]
    except KeyError:
        raise CodeError(
            f"{module.path}: no top-level definition of {name!r}; a step function and the classes of its config are "
            "defined at the top level of a module."
        ) from None
