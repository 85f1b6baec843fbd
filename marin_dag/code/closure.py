"""Closure of the definitions that a step function reaches, over the first-party modules read so far."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.references import Aspect, Reference, Scanned, source_text
from marin_dag.code.summary import EFFECTS, Class, Definition, Summary
from marin_dag.code.summary_cache import SummaryCache
from marin_dag.code.syntax import Module, Target, parse_module
from marin_dag.errors import UserError

SHOWN_DIGITS = 16


class CodeError(UserError):
    """Source that a fingerprint needs and that is not there."""


class Place(NamedTuple):
    """A definition, and how much of it counts."""

    module: str
    name: str
    aspect: Aspect


class Closure(NamedTuple):
    """Everything that some definitions reach."""

    fingerprint: str
    definitions: dict[str, str]
    """Qualified name to hash, of every definition reached."""
    opaque: tuple[str, ...]
    """Code that the reading could not follow: a change behind it goes unseen."""


class Covered(NamedTuple):
    """The source files whose code a closure counts, and the modules that they are."""

    modules: frozenset[str]
    files: frozenset[Path]


class _Reached(NamedTuple):
    places: set[Place]
    opaque: set[str]
    loaded: set[str]
    """Modules that are imported."""


class Sources:
    """Modules below some roots, each file read once.

    Args:
        roots: folders that hold top-level packages, in the order in which they are searched.
        first_party: names of the top-level packages whose code counts.
    """

    def __init__(self, roots: Iterable[Path], first_party: frozenset[str]) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._first_party = first_party
        self._cache = SummaryCache("\n".join(map(str, self._roots)))
        self._files: dict[str, Path] = {}
        self._modules: dict[str, Summary | None] = {}
        self._resolved: dict[Reference, tuple[Place, ...]] = {}
        self._acting: dict[str, tuple[Place, ...]] = {}
        self._signatures: dict[Path, tuple[int, ...] | None] = {}

    def is_first_party(self, module: str) -> bool:
        """Return whether the code of `module` counts."""
        return module.partition(".")[0] in self._first_party

    def is_current(self) -> bool:
        """Return whether every file that was read, or found missing, is still as it was."""
        return all(_signature(path) == signature for path, signature in list(self._signatures.items()))

    def save(self) -> None:
        """Keep what was read for later processes."""
        self._cache.save()

    def add_file(self, name: str, path: Path) -> None:
        """Read `path` as module `name`, wherever an import would look for it."""
        if name not in self._modules:
            self._modules[name] = self._read(name, path)

    def module(self, name: str) -> Summary | None:
        """Return the summary of a module; None where it has no source file, as a folder without `__init__`."""
        if name not in self._modules:
            # Set once, when it is known: another thread may ask meanwhile.
            self._modules[name] = self._found(name)
        return self._modules[name]

    def _found(self, name: str) -> Summary | None:
        parent = self._modules.get(name.rpartition(".")[0])
        if parent is not None and not parent.is_package:  # `from module import name`, mostly
            return None
        relative = Path(*name.split("."))
        candidates = (
            path for root in self._roots for path in (root / relative / "__init__.py", root / f"{relative}.py")
        )
        return next((found for path in candidates if (found := self._read(name, path)) is not None), None)

    def _read(self, name: str, path: Path) -> Summary | None:
        signature = self._signatures[path] = _signature(path)
        if signature is None:
            return None
        self._files[name] = path
        return self._cache.summary(name, path, path.read_bytes())

    def closure(self, start: Iterable[Place]) -> Closure:
        """Return what `start` reaches, and what importing its modules runs."""
        reached = self._reached(start)
        digests = {name: self._scan(place).digest for name, place in _widest(reached.places).items()}
        text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
        return Closure(
            hashlib.sha256(text.encode()).hexdigest(),
            {name: digest[:SHOWN_DIGITS] for name, digest in digests.items()},
            tuple(sorted(reached.opaque)),
        )

    def covered(self, start: Iterable[Place]) -> Covered:
        """Return the modules whose code the closure of `start` counts."""
        modules = {name for name in self._reached(start).loaded if self.module(name) is not None}
        return Covered(frozenset(modules), frozenset(self._files[name] for name in modules))

    def texts(self, start: Iterable[Place]) -> dict[str, str]:
        """Return name and readable source of each definition of the closure."""
        parsed: dict[str, Module] = {}
        found = {}
        for name, place in _widest(self._reached(start).places).items():
            if place.module not in parsed:
                file = self._files[place.module]
                parsed[place.module] = parse_module(place.module, file, file.read_bytes())
            module = parsed[place.module]
            statements = module.effects if place.name == EFFECTS else module.definitions[place.name]
            found[name] = source_text(module, statements, place.aspect)
        return found

    def _reached(self, start: Iterable[Place]) -> _Reached:
        pending = list(start)
        reached = _Reached(set(), set(), set())
        while pending:
            place = pending.pop()
            if place in reached.places:
                continue
            reached.places.add(place)
            pending.extend(self._load(place.module, reached.loaded))
            scanned = self._scan(place)
            reached.opaque.update(scanned.opaque)
            for name in scanned.loads:
                pending.extend(self._load(name, reached.loaded))
            for reference in scanned.references:
                pending.extend(self._resolve(reference, reached.opaque))
        return reached

    def _load(self, module: str, loaded: set[str]) -> Iterator[Place]:
        """Yield what importing a module runs: the module, its packages, and all that these import in turn."""
        pending = [module]
        while pending:
            name = pending.pop()
            if name in loaded or not self.is_first_party(name):
                continue
            loaded.add(name)
            pending.append(name.rpartition(".")[0])
            summary = self.module(name)
            if summary is not None:
                yield from self._acts(summary)
                pending.extend(summary.loads)

    def _acts(self, module: Summary) -> tuple[Place, ...]:
        """Return what acts on import: statements that define nothing, and definitions that register themselves."""
        if module.name not in self._acting:
            names = [name for name, definition in module.definitions.items() if self._is_acting(module, definition)]
            names += [] if module.effects is None else [EFFECTS]
            self._acting[module.name] = tuple(Place(module.name, name, Aspect.FULL) for name in names)
        return self._acting[module.name]

    def _is_acting(self, module: Summary, definition: Definition) -> bool:
        return (
            definition.is_registering
            or any(self.is_first_party(target.module) for target in definition.decorators)
            or any(self._registers(each, frozenset()) for each in definition.classes)
            or any(not called.is_class for called in self._named(definition.calls))
        )

    def _registers(self, made: Class, above: frozenset[Class]) -> bool:
        """Return whether making the class runs first-party code: `__init_subclass__` or a metaclass, also a base's."""
        if made in above:  # `class Base(Base)` over an import of that name
            return False
        if any(self.is_first_party(target.module) for target in made.keywords):
            return True
        return any(
            base.has_hook or self._registers(base, above | {made})
            for definition in self._named(made.bases)
            for base in definition.classes
        )

    def _named(self, references: Iterable[Reference]) -> Iterator[Definition]:
        for reference in references:
            for place in self._resolve(reference, set()):
                module = self.module(place.module)
                assert module is not None
                yield module.definitions[place.name]

    def _scan(self, place: Place) -> Scanned:
        module = self.module(place.module)
        assert module is not None
        if place.name == EFFECTS:
            assert module.effects is not None
            return module.effects
        try:
            return module.definitions[place.name].scanned[place.aspect]
        except KeyError:
            raise CodeError(
                f"{self._files[place.module]}: no top-level definition of {place.name!r}; a step function and the "
                "classes of its config are defined at the top level of a module."
            ) from None

    def _resolve(self, reference: Reference, opaque: set[str]) -> tuple[Place, ...]:
        if reference not in self._resolved:
            missing: list[str] = []
            places = tuple(self._places(reference, missing, set()))
            opaque.update(missing)
            if missing:  # not remembered: every closure that meets it reports it
                return places
            self._resolved[reference] = places
        return self._resolved[reference]

    def _places(self, reference: Reference, missing: list[str], visited: set[Reference]) -> Iterator[Place]:
        (name, attribute, is_certain), chain, aspect = reference
        if not self.is_first_party(name) or reference in visited:  # modules may pass a name on in a circle
            return
        visited.add(reference)
        if attribute is not None:
            chain = (attribute, *chain)
        module = self.module(name)
        if not chain:
            yield from self._whole(name, module, aspect, missing, visited)
            return
        head, rest = chain[0], chain[1:]
        if not is_certain and module is not None and "__all__" in module.definitions:
            yield Place(name, "__all__", Aspect.FULL)  # says whether a star brings the name
        if module is not None and head in module.definitions:
            yield Place(name, head, aspect)
            for target, inner in module.definitions[head].alias or ():
                yield from self._places(Reference(target, (*inner, *rest), aspect), missing, visited)
        for target in module.imports.get(head, ()) if module is not None else ():
            yield from self._places(Reference(target, rest, aspect), missing, visited)
        if module is not None and (head in module.definitions or head in module.imports):
            return
        if self._is_module(f"{name}.{head}"):
            yield from self._places(Reference(Target(f"{name}.{head}", None), rest, aspect), missing, visited)
            return
        if module is None:
            stars: tuple[str, ...] = ()
        else:
            stars = module.star_imports
            if "__getattr__" in module.definitions:
                yield Place(name, "__getattr__", Aspect.FULL)
                return
        for star in stars:
            yield from self._places(Reference(Target(star, head, is_certain=False), rest, aspect), [], visited)
        if is_certain and not stars and not head.startswith("__"):
            missing.append(f"{name}.{head}: not found in the source")

    def _whole(
        self, name: str, module: Summary | None, aspect: Aspect, missing: list[str], visited: set[Reference]
    ) -> Iterator[Place]:
        """Yield all of a module that is used as a value, and what it passes on."""
        if module is None:
            return
        for attribute in dict.fromkeys([*module.definitions, *module.imports]):
            yield from self._places(Reference(Target(name, attribute), (), aspect), missing, visited)
        for star in module.star_imports:
            yield from self._places(Reference(Target(star, None), (), aspect), missing, visited)

    def _is_module(self, name: str) -> bool:
        relative = Path(*name.split("."))
        return self.module(name) is not None or any((root / relative).is_dir() for root in self._roots)


def _widest(places: Iterable[Place]) -> dict[str, Place]:
    """Return by name the place that counts most of each definition."""
    widest: dict[str, Place] = {}
    for place in sorted(places):  # by aspect last, so that the widest of a name wins
        widest[f"{place.module}.{place.name}"] = place
    return dict(sorted(widest.items()))


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    # The time of the last change of the inode, since a rewrite of one size can put the other time back.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
