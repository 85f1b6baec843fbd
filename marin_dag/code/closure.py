"""Closure of the definitions that a step function reaches, over the first-party modules read so far."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.references import Aspect, Reference, Scanned, alias_of, decorated_by, named, scan, source_text
from marin_dag.code.syntax import Module, Target, parse_module
from marin_dag.errors import UserError

EFFECTS = "<module>"
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


class Sources:
    """Modules below some roots, each file read once.

    Args:
        roots: folders that hold top-level packages, in the order in which they are searched.
        first_party: names of the top-level packages whose code counts.
    """

    def __init__(self, roots: Iterable[Path], first_party: frozenset[str]) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._first_party = first_party
        self._modules: dict[str, Module | None] = {}
        self._scanned: dict[Place, Scanned] = {}
        self._texts: dict[Place, str] = {}
        self._resolved: dict[Reference, tuple[Place, ...]] = {}
        self._acting: dict[str, tuple[Place, ...]] = {}
        self._signatures: dict[Path, tuple[int, ...] | None] = {}

    def is_first_party(self, module: str) -> bool:
        """Return whether the code of `module` counts."""
        return module.partition(".")[0] in self._first_party

    def is_current(self) -> bool:
        """Return whether every file that was read, or found missing, is still as it was."""
        return all(_signature(path) == signature for path, signature in list(self._signatures.items()))

    def add_file(self, name: str, path: Path) -> None:
        """Read `path` as module `name`, wherever an import would look for it."""
        if name not in self._modules:
            self._modules[name] = self._parsed(name, path)

    def module(self, name: str) -> Module | None:
        """Return the parsed module; None where there is no such source file, as for a folder without `__init__`."""
        if name not in self._modules:
            # Set once, when it is known: another thread may ask meanwhile.
            self._modules[name] = self._found(name)
        return self._modules[name]

    def _found(self, name: str) -> Module | None:
        parent = self._modules.get(name.rpartition(".")[0])
        if parent is not None and parent.path.name != "__init__.py":  # `from module import name`, mostly
            return None
        relative = Path(*name.split("."))
        candidates = (
            path for root in self._roots for path in (root / relative / "__init__.py", root / f"{relative}.py")
        )
        return next((found for path in candidates if (found := self._parsed(name, path)) is not None), None)

    def _parsed(self, name: str, path: Path) -> Module | None:
        self._signatures[path] = _signature(path)
        return None if self._signatures[path] is None else parse_module(name, path)

    def closure(self, start: Iterable[Place]) -> Closure:
        """Return what `start` reaches, and what importing its modules runs."""
        seen, opaque = self._reached(start)
        digests = {name: self._scanned[place].digest for name, place in _widest(seen).items()}
        text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
        return Closure(
            hashlib.sha256(text.encode()).hexdigest(),
            {name: digest[:SHOWN_DIGITS] for name, digest in digests.items()},
            tuple(sorted(opaque)),
        )

    def texts(self, start: Iterable[Place]) -> dict[str, str]:
        """Return name and readable source of each definition of the closure."""
        return {name: self._text(place) for name, place in _widest(self._reached(start)[0]).items()}

    def _text(self, place: Place) -> str:
        if place not in self._texts:
            module = self.module(place.module)
            assert module is not None
            self._texts[place] = source_text(module, self._syntax(module, place.name), place.aspect)
        return self._texts[place]

    def _reached(self, start: Iterable[Place]) -> tuple[set[Place], set[str]]:
        pending = list(start)
        seen: set[Place] = set()
        opaque: set[str] = set()
        loaded: set[str] = set()
        while pending:
            place = pending.pop()
            if place in seen:
                continue
            seen.add(place)
            pending.extend(self._load(place.module, loaded))
            scanned = self._scan(place)
            opaque.update(scanned.opaque)
            for name in scanned.loads:
                pending.extend(self._load(name, loaded))
            for reference in scanned.references:
                pending.extend(self._resolve(reference, opaque))
        return seen, opaque

    def _load(self, module: str, loaded: set[str]) -> Iterator[Place]:
        """Yield what importing a module runs: the module, its packages, and all that these import in turn."""
        pending = [module]
        while pending:
            name = pending.pop()
            if name in loaded or not self.is_first_party(name):
                continue
            loaded.add(name)
            pending.append(name.rpartition(".")[0])
            parsed = self.module(name)
            if parsed is not None:
                yield from self._acts(parsed)
                pending.extend(parsed.loads)

    def _acts(self, module: Module) -> tuple[Place, ...]:
        """Return what acts on import: statements that define nothing, and definitions that register themselves."""
        if module.name not in self._acting:
            names = [name for name, statements in module.definitions.items() if self._is_acting(module, statements)]
            names += [EFFECTS] if module.effects else []
            self._acting[module.name] = tuple(Place(module.name, name, Aspect.FULL) for name in names)
        return self._acting[module.name]

    def _is_acting(self, module: Module, statements: Iterable[ast.stmt]) -> bool:
        for statement in statements:
            for target, chain in decorated_by(module, statement):
                if self.is_first_party(target.module) or "register" in ".".join([str(target), *chain]):
                    return True
            match statement:
                case ast.ClassDef() if self._registers(module, statement, frozenset()):
                    return True
                case ast.Assign(value=ast.Call() as call) | ast.AnnAssign(value=ast.Call() as call):
                    if self._calls_a_function(module, call):
                        return True
        return False

    def _registers(self, module: Module, definition: ast.ClassDef, above: frozenset[str]) -> bool:
        """Return whether making the class runs first-party code: `__init_subclass__` or a metaclass, also a base's."""
        qualified = f"{module.name}.{definition.name}"
        if qualified in above:
            return False
        for keyword in definition.keywords:
            if any(self.is_first_party(target.module) for target, _ in named(module, keyword.value)):
                return True
        for base in definition.bases:
            for place in self._named_places(module, base):
                parsed = self.module(place.module)
                assert parsed is not None
                for statement in parsed.definitions[place.name]:
                    if isinstance(statement, ast.ClassDef) and (
                        any(getattr(item, "name", "") == "__init_subclass__" for item in statement.body)
                        or self._registers(parsed, statement, above | {qualified})
                    ):
                        return True
        return False

    def _calls_a_function(self, module: Module, call: ast.Call) -> bool:
        """Return whether a top-level `name = call(...)` runs first-party code beyond making an instance."""
        for place in self._named_places(module, call.func):
            parsed = self.module(place.module)
            assert parsed is not None
            if not all(isinstance(statement, ast.ClassDef) for statement in parsed.definitions[place.name]):
                return True
        return False

    def _named_places(self, module: Module, expression: ast.expr) -> Iterator[Place]:
        for target, chain in named(module, expression):
            yield from self._resolve(Reference(target, chain, Aspect.FULL), set())

    def _scan(self, place: Place) -> Scanned:
        if place not in self._scanned:
            module = self.module(place.module)
            assert module is not None
            self._scanned[place] = scan(module, place.name, self._syntax(module, place.name), place.aspect)
        return self._scanned[place]

    @staticmethod
    def _syntax(module: Module, name: str) -> list[ast.stmt]:
        return module.effects if name == EFFECTS else _statements(module, name)

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
            for target, inner in alias_of(module, head) or ():
                yield from self._places(Reference(target, (*inner, *rest), aspect), missing, visited)
        for target in module.imports.get(head, ()) if module is not None else ():
            yield from self._places(Reference(target, rest, aspect), missing, visited)
        if module is not None and (head in module.definitions or head in module.imports):
            return
        if self._is_module(f"{name}.{head}"):
            yield from self._places(Reference(Target(f"{name}.{head}", None), rest, aspect), missing, visited)
            return
        if module is None:
            stars: list[str] = []
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
        self, name: str, module: Module | None, aspect: Aspect, missing: list[str], visited: set[Reference]
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


def _statements(module: Module, name: str) -> list[ast.stmt]:
    try:
        return module.definitions[name.partition(".")[0]]
    except KeyError:
        raise CodeError(
            f"{module.path}: no top-level definition of {name!r}; a step function and the classes of its config are "
            "defined at the top level of a module."
        ) from None
