"""Sources: the modules of a project, found as an import finds them, and what a name in one of them stands for."""

import functools
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.references import NAMESPACES, Aspect, Reference
from marin_dag.code.summary import Definition, Summary
from marin_dag.code.summary_cache import SummaryCache
from marin_dag.code.syntax import SCRIPT, Module, Target, parse_module
from marin_dag.errors import UserError

ENGINE = "marin_dag"


class CodeError(UserError):
    """Source that a fingerprint needs and that is not there."""


class Place(NamedTuple):
    """A definition, and how much of it counts."""

    module: str
    name: str
    aspect: Aspect


class Sources:
    """Modules below some roots, each file read once.

    Every module that lies below a root counts, but for the engine's.

    Args:
        roots: folders that hold top-level packages, in the order in which they are searched.
        first_party: top-level packages whose modules count even where no source is found.
    """

    def __init__(self, roots: Iterable[Path], first_party: frozenset[str] = frozenset()) -> None:
        self.roots = tuple(dict.fromkeys(roots))
        self._is_first_party = dict.fromkeys(first_party, True) | {ENGINE: ENGINE in first_party}
        self._cache = SummaryCache("\n".join(map(str, self.roots[:2])))
        self.files: dict[str, Path] = {}
        self._modules: dict[str, Summary | None] = {}
        self._resolved: dict[Reference, tuple[Place, ...]] = {}
        self._signatures: dict[Path, tuple[int, ...] | None] = {}

    def is_first_party(self, module: str) -> bool:
        """Return whether the code of `module` counts."""
        package = module.partition(".")[0]
        if package not in self._is_first_party:
            self._is_first_party[package] = any(self._holds(root, package) for root in self.roots)
        return self._is_first_party[package]

    def _holds(self, root: Path, package: str) -> bool:
        if (root / f"{package}.py").is_file() or (root / package / "__init__.py").is_file():
            return True
        # A folder without `__init__` gives way to an installed package of its name.
        return any((root / package).glob("*.py")) and not is_installed(package)

    def is_current(self) -> bool:
        """Return whether every file that was read, or found missing, is still as it was."""
        return all(_signature(path) == signature for path, signature in list(self._signatures.items()))

    def save(self) -> None:
        self._cache.save()

    def content(self, path: Path) -> bytes | None:
        """Return the content of a file that counts; None where there is no such file."""
        signature = self._signatures[path] = _signature(path)
        return path.read_bytes() if signature is not None and path.is_file() else None

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
            path for root in self.roots for path in (root / relative / "__init__.py", root / f"{relative}.py")
        )
        return next((found for path in candidates if (found := self._read(name, path)) is not None), None)

    def _read(self, name: str, path: Path) -> Summary | None:
        content = self.content(path)
        if content is None:
            return None
        self.files[name] = path
        return self._cache.summary(name, path, content)

    def parsed(self, name: str) -> Module:
        return parse_module(name, self.files[name], self.files[name].read_bytes())

    def definition(self, place: Place) -> Definition:
        module = self.module(place.module)
        assert module is not None
        try:
            return module.definitions[place.name]
        except KeyError:
            raise CodeError(
                f"{self.files[place.module]}: no top-level definition of {place.name!r}; a step function and the "
                "classes of its config are defined at the top level of a module."
            ) from None

    def resolve(self, reference: Reference, opaque: set[str]) -> tuple[Place, ...]:
        """Return the definitions that a reference names; what is not found in the source goes to `opaque`."""
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
            yield from self._whole(name, module, aspect, missing, visited, is_text=not is_certain)
            return
        head, rest = chain[0], chain[1:]
        if head in NAMESPACES:
            missing.append(f"{name}.{head}: names of a module by value")
            yield from self._whole(name, module, aspect, missing, visited)
            return
        if not is_certain and module is not None and "__all__" in module.definitions:
            yield Place(name, "__all__", Aspect.FULL)  # says whether a star brings the name
        elif not is_certain and head.startswith("_"):
            return
        if module is not None and head in module.definitions:
            yield Place(name, head, aspect)
            for target, inner in module.definitions[head].alias or ():
                yield from self._places(Reference(target, (*inner, *rest), aspect), missing, visited)
        for target in module.imports.get(head, ()) if module is not None else ():
            yield from self._places(Reference(target, rest, aspect), missing, visited)
        if module is not None and (head in module.definitions or head in module.imports):
            return
        if self.is_module(f"{name}.{head}"):
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
        self,
        name: str,
        module: Summary | None,
        aspect: Aspect,
        missing: list[str],
        visited: set[Reference],
        *,
        is_text: bool = False,
    ) -> Iterator[Place]:
        """Yield all of a module that is used as a value, or that a text names, and what it passes on."""
        if (module is None or module.is_package) and name != ENGINE and not is_text:
            for inner in self._submodules(name):
                yield from self._whole(inner, self.module(inner), aspect, missing, visited)
        if module is None:
            return
        for attribute in dict.fromkeys([*module.definitions, *module.imports]):
            if attribute == SCRIPT:
                continue
            yield from self._places(Reference(Target(name, attribute), (), aspect), missing, visited)
        for star in module.star_imports:
            yield from self._places(Reference(Target(star, None), (), aspect), missing, visited)

    def _submodules(self, name: str) -> list[str]:
        folders = [root / Path(*name.split(".")) for root in self.roots]
        files = [file for folder in folders for pattern in ("*.py", "*/__init__.py") for file in folder.glob(pattern)]
        names = {file.parent.name if file.name == "__init__.py" else file.stem for file in files}
        own = {folder.name for folder in folders}
        return [f"{name}.{each}" for each in sorted(names - own)]

    def is_module(self, name: str) -> bool:
        """Return whether `name` is a module or a folder of modules."""
        relative = Path(*name.split("."))
        return self.module(name) is not None or any((root / relative).is_dir() for root in self.roots)


@functools.cache
def is_installed(package: str) -> bool:
    """Return whether the environment, or Python itself, has a top-level package."""
    folders = [Path(folder) for folder in _installed_folders()]
    return package in sys.stdlib_module_names or any(
        (folder / package).is_dir() or (folder / f"{package}.py").is_file() for folder in folders
    )


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    named = sysconfig.get_paths()
    own = {named[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(sorted(own | {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}))


def searched_folders() -> tuple[Path, ...]:
    """Return the folders in which this process looks for modules that are neither Python's nor installed."""
    return _searched(tuple(sys.path))


@functools.cache
def _searched(entries: tuple[str, ...]) -> tuple[Path, ...]:
    folders = [Path(entry).resolve() for entry in entries if entry]
    outside = [Path(folder).resolve() for folder in (*_installed_folders(), sys.prefix, sys.base_prefix)]
    return tuple(
        folder for folder in folders if folder.is_dir() and not any(folder.is_relative_to(each) for each in outside)
    )


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    # The time of the last change of the inode, since a rewrite of one size can put the other time back.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
