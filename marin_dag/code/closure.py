"""Closure of the definitions that a step function reaches, over the modules of the project."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.objects import written
from marin_dag.code.reads import modules_run_by
from marin_dag.code.references import Aspect, Reference, source_text
from marin_dag.code.sources import ENGINE, Place, Sources
from marin_dag.code.summary import EFFECTS, Scanned
from marin_dag.code.syntax import SCRIPT, Target
from marin_dag.code.trace import Traces

IMPORT_ORDER = "<imports>"
FILES = "<files>"
SHOWN_DIGITS = 16
MAX_FILES = 1_000
MAX_FILE_BYTES = 64 * 2**20


class Closure(NamedTuple):
    """Everything that some definitions reach."""

    fingerprint: str
    definitions: dict[str, str]
    """Qualified name to hash, of every definition reached."""
    opaque: tuple[str, ...]
    """Code that the reading could not follow: a change behind it goes unseen."""


class Covered(NamedTuple):
    """The modules, files and variables that a fingerprint covers; a change of anything else goes unseen."""

    modules: frozenset[str]
    files: frozenset[Path]
    """The source files of the modules, and the files beside them that count by their content."""
    environment: frozenset[str]
    """Environment variables that the code names. Their values are not in the fingerprint."""


@dataclasses.dataclass
class _Reached:
    scans: dict[Place, tuple[Scanned, ...]] = dataclasses.field(default_factory=dict)
    opaque: set[str] = dataclasses.field(default_factory=set)
    loaded: set[str] = dataclasses.field(default_factory=set)
    """Modules that are imported."""
    files: dict[Path, str] = dataclasses.field(default_factory=dict)
    """Files beside the code, and the name by which each counts."""
    optional: set[str] = dataclasses.field(default_factory=set)
    """Modules whose presence counts."""

    def all_scans(self) -> Iterator[Scanned]:
        return itertools.chain.from_iterable(self.scans.values())


class Closures:
    """Closures over the modules of some sources."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._traces = Traces(sources)
        self._keepers: dict[Target, bool] = {}
        self._texts: dict[Place, str] = {}

    def closure(self, start: Iterable[Place]) -> Closure:
        """Return what `start` reaches, and what importing its modules runs."""
        places = list(start)
        reached = self._reached(places)
        digests = self._digests(places, reached)
        text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
        return Closure(
            hashlib.sha256(text.encode()).hexdigest(),
            {name: digest[:SHOWN_DIGITS] for name, digest in digests.items()},
            tuple(sorted(reached.opaque)),
        )

    def covered(self, start: Iterable[Place]) -> Covered:
        """Return the modules, files and variables that the closure of `start` covers."""
        reached = self._reached(start)
        modules = {name for name in reached.loaded if self.sources.module(name) is not None}
        files = {self.sources.files[name] for name in modules} | reached.files.keys()
        variables = {name for scanned in reached.all_scans() for name in scanned.reads.environment}
        return Covered(frozenset(modules), frozenset(files), frozenset(variables))

    def texts(self, start: Iterable[Place]) -> dict[str, str]:
        """Return name and readable source of each definition of the closure."""
        widest = _widest(self._reached(start).scans)
        unread = [place for place in widest.values() if place not in self._texts]
        modules = {name: self.sources.parsed(name) for name in {place.module for place in unread}}
        for place in unread:
            module = modules[place.module]
            statements = module.executed if place.name == EFFECTS else module.definitions[place.name]
            self._texts[place] = source_text(module, statements, place.aspect)
        return {name: self._texts[place] for name, place in widest.items()}

    def _digests(self, start: list[Place], reached: _Reached) -> dict[str, str]:
        widest = _widest(reached.scans)
        is_documented = any(scanned.reads.documentation for scanned in reached.all_scans())
        reads_logs = any(scanned.text_reads.logs for scanned in reached.all_scans())
        touched = {name for module in reached.loaded for name in self._traces.touched(module)}
        reads_exceptions = any(
            scanned.text_reads.exceptions or not self._only_keep(scanned.text_reads.wrappers, touched)
            for scanned in reached.all_scans()
        )
        reads_variables = any(scanned.text_reads.variables for scanned in reached.all_scans())
        digests = {}
        for name, place in widest.items():
            parts = []
            for scanned in reached.scans[place]:
                parts += [scanned.digest, *([scanned.documentation] if is_documented else [])]
                parts += [scanned.variables] if reads_variables else []
                parts += map(ascii, scanned.messages.logged if reads_logs else ())
                parts += [
                    ascii(each.texts)
                    for each in scanned.messages.raised
                    if reads_exceptions or not self._only_keep(each.errors, touched)
                ]
            digests[name] = parts[0] if len(parts) == 1 else _hash(*parts)
        if is_documented:
            for name in reached.loaded:
                module = self.sources.module(name)
                if module is not None and module.documentation:
                    digests[f"{name}.__doc__"] = module.documentation
        order = self._import_order(start, widest.values(), reached)
        if len(order) > 1:
            digests[IMPORT_ORDER] = _hash(*order)
        for name in reached.optional:
            module = self.sources.module(name) if self.sources.is_first_party(name) else None
            if module is not None and not module.definitions:
                digests.setdefault(f"{name}.{EFFECTS}", "present")
        for path, counted_as in reached.files.items():
            content = self.sources.content(path)
            digests[f"{FILES}.{counted_as}"] = hashlib.sha256(b"" if content is None else content).hexdigest()
        return dict(sorted(digests.items()))

    def _only_keep(self, errors: Iterable[Target], touched: set[str]) -> bool:
        """Return whether instances of these exception classes only keep their arguments when they are made."""
        return all(
            self._only_keeps(error) and touched.isdisjoint((error.module, written((error, ())))) for error in errors
        )

    def _only_keeps(self, error: Target) -> bool:
        if error not in self._keepers:
            self._keepers[error] = True  # classes that inherit from each other in a circle do not run
            if error.module.partition(".")[0] != ENGINE:
                places = self.sources.resolve(Reference(error, (), Aspect.FULL), set())
                found = [self.sources.definition(place) for place in places]
                bases = [base.target for each in found for base in each.bases]
                self._keepers[error] = (
                    bool(found) and all(each.is_error for each in found) and all(map(self._only_keeps, bases))
                )
        return self._keepers[error]

    def _reached(self, start: Iterable[Place]) -> _Reached:
        pending = list(start)
        reached = _Reached()
        unheld: list[Place] = []
        while pending or unheld:
            if not pending:
                # A schema of a config shows the classes that its type allows, too.
                makes_schema = any(scanned.reads.documentation for scanned in reached.all_scans())
                pending = [each._replace(aspect=Aspect.FULL) for each in unheld] if makes_schema else []
                unheld = []
                continue
            place = pending.pop()
            if place.aspect is Aspect.TYPE and self._is_schema(place):
                place = place._replace(aspect=Aspect.FULL)
            if place in reached.scans:
                continue
            pending.extend(self._load(place.module, reached.loaded))
            if place.name != EFFECTS and self._is_class_of_a_type(place):
                unheld.append(place)
                continue
            trace = self._traces.of(place.module)
            if place.name == EFFECTS:
                assert trace is not None
                reached.scans[place] = trace.scans
                # `x = other.thing` runs code of what it is short for, such as a descriptor.
                names = [Reference(Target(each.module, each.name), (), Aspect.FULL) for each in trace.places]
                pending.extend(found for name in names for found in self.sources.resolve(name, reached.opaque))
            else:
                reached.scans[place] = (self.sources.definition(place).scanned[place.aspect],)
                if trace is not None:
                    pending.append(Place(place.module, EFFECTS, Aspect.FULL))
            for scanned in reached.scans[place]:
                pending.extend(self._follow(place, scanned, reached))
        return reached

    def _follow(self, place: Place, scanned: Scanned, reached: _Reached) -> Iterator[Place]:
        reached.opaque.update(scanned.opaque)
        for name in scanned.loads:
            yield from self._load(name, reached.loaded)
        inside = [found for call in scanned.guarded_calls for found in self.sources.resolve(call, set())]
        called = [self.sources.definition(each).scanned[each.aspect] for each in inside]
        seen: set[str] = set()
        for name in dict.fromkeys([*scanned.guarded, *(name for each in called for name in each.loads)]):
            reached.optional.add(name)
            yield from self._all_of(name, reached, seen)
        # Only code that imports by name reaches all modules of a package that a text names.
        imports = any("import_module" in what or "pkgutil" in what for what in scanned.opaque)
        named = list(self._named_by(scanned.reads.modules, is_certain=imports))
        reached.optional.update(
            each.target.module for each in named if each.target.attribute is None and not each.chain
        )
        for reference in (*scanned.references, *named):
            yield from self._load(reference.target.module, reached.loaded)
            yield from self.sources.resolve(reference, reached.opaque)
        if scanned.reads.files or scanned.reads.paths:
            known = set(reached.files)
            self._add_files(place, scanned, reached)
            for script in (each for each in reached.files.keys() - known if each.suffix == ".sh"):
                text = (self.sources.content(script) or b"").decode(errors="replace")
                for reference in self._named_by(modules_run_by(text), is_certain=False):
                    yield from self._load(reference.target.module, reached.loaded)
                    yield from self.sources.resolve(reference, reached.opaque)

    def _all_of(self, name: str, reached: _Reached, seen: set[str]) -> Iterator[Place]:
        """Yield all by which an import of a module, or of one that it imports, may fail."""
        module = self.sources.module(name) if self.sources.is_first_party(name) and name not in seen else None
        seen.add(name)
        if module is not None:
            for inner in module.loads:
                yield from self._all_of(inner, reached, seen)
            for target in (each for targets in module.imports.values() for each in targets):
                yield from self.sources.resolve(Reference(target, (), Aspect.FULL), reached.opaque)
            yield from (Place(name, each, Aspect.FULL) for each in module.definitions if each != SCRIPT)
            if self._traces.of(name) is not None:
                yield Place(name, EFFECTS, Aspect.FULL)

    def _is_class_of_a_type(self, place: Place) -> bool:
        return place.aspect is Aspect.TYPE and self.sources.definition(place).is_class

    def _is_schema(self, place: Place) -> bool:
        """Return whether a class, or one of its bases, decides how models read or write other values."""
        pending, seen = [place], set()
        while pending:
            each = pending.pop()
            if (each.module, each.name) in seen:
                continue
            seen.add((each.module, each.name))
            definition = self.sources.definition(each)
            if definition.is_schema:
                return True
            pending += [found for base in definition.bases for found in self.sources.resolve(base, set())]
        return False

    def _load(self, module: str, loaded: set[str]) -> Iterator[Place]:
        """Yield what importing a module does that other code can see, and importing all that it imports in turn."""
        pending = [module]
        while pending:
            name = pending.pop()
            if name in loaded or not self.sources.is_first_party(name):
                continue
            loaded.add(name)
            pending.append(name.rpartition(".")[0])
            summary = self.sources.module(name)
            if summary is not None:
                if self._traces.is_foreign(name):
                    yield Place(name, EFFECTS, Aspect.FULL)
                pending.extend(summary.loads)
                for inner in summary.loads:
                    yield from self._made_when_asked(inner)

    def _made_when_asked(self, name: str) -> Iterator[Place]:
        """Yield the `__getattr__` that `from package import name` runs where the package has no such name."""
        parent, _, last = name.rpartition(".")
        module = self.sources.module(parent) if parent and self.sources.is_first_party(parent) else None
        if module is None or "__getattr__" not in module.definitions or self.sources.is_module(name):
            return
        if last not in module.definitions and last not in module.imports:
            yield Place(parent, "__getattr__", Aspect.FULL)

    def _named_by(self, texts: Iterable[str], *, is_certain: bool) -> Iterator[Reference]:
        """Yield the modules of the project, and what in them, that texts name."""
        for text in texts:
            name, _, attributes = text.partition(":")
            chain = tuple(filter(None, attributes.split(".")))
            while name and self.sources.is_first_party(name):
                module = self.sources.module(name)
                if module is not None:
                    yield Reference(Target(name, None, is_certain or bool(chain)), chain, Aspect.FULL)
                    if SCRIPT in module.definitions:
                        yield Reference(Target(name, SCRIPT), (), Aspect.FULL)
                    if module.is_package:  # `python -m PACKAGE` runs its `__main__.py`
                        yield Reference(Target(f"{name}.{SCRIPT}", None), (), Aspect.FULL)
                    break
                name, _, last = name.rpartition(".")
                chain = (last, *chain)

    def _import_order(self, start: list[Place], places: Iterable[Place], reached: _Reached) -> list[str]:
        """Return the modules whose order of import matters, in that order; [] where none changes what others read."""
        if not any(map(self._traces.is_foreign, reached.loaded)):
            return []
        order: dict[str, None] = {}
        seen: set[str] = set()
        for place in start[:1]:
            self._add_in_order(place.module, seen, order)
        for place in places:
            for name in [loaded for scanned in reached.scans[place] for loaded in scanned.loads]:
                self._add_in_order(name, seen, order)
        return [name for name in order if self._traces.is_foreign(name) or self._traces.reads_others(name)]

    def _add_in_order(self, name: str, seen: set[str], order: dict[str, None]) -> None:
        """Add a module and what it imports, each after all that it imports itself."""
        if name in seen or not self.sources.is_first_party(name):
            return
        seen.add(name)
        if parent := name.rpartition(".")[0]:
            self._add_in_order(parent, seen, order)
        module = self.sources.module(name)
        if module is not None:
            for inner in module.loads:
                self._add_in_order(inner, seen, order)
            order[name] = None

    def _add_files(self, place: Place, scanned: Scanned, reached: _Reached) -> None:
        """Add the files beside the code that a definition may read: those that it names, or else all of its folder."""
        folder = self.sources.files[place.module].parent
        depth = place.module.count(".") + 1
        folders = [folder, *folder.parents][:depth]
        named = [beside / text for text in scanned.reads.paths for beside in folders if (beside / text).exists()]
        files = [file for path in named if path not in folders for file in _files_of(path, is_deep=True)]
        is_root = folder in self.sources.roots or depth == 1
        is_named = bool(files)
        if scanned.reads.files and (scanned.reads.computes_paths or not is_named):
            files = [*files, *_files_of(folder, is_deep=not is_root)]
        if scanned.reads.files and (not is_named or scanned.reads.own_source):
            reached.opaque.add(f"{place.module}.{place.name}: files beside the code, which it does not name")
        if len(files) > MAX_FILES or sum(file.stat().st_size for file in files) > MAX_FILE_BYTES:
            reached.opaque.add(f"{place.module}.{place.name}: more files beside the code than are read")
            return
        for file in files:
            relative = next(file.relative_to(each) for each in reversed(folders) if file.is_relative_to(each))
            reached.files[file] = f"{place.module}:{relative.as_posix()}"


def module_of(name: str) -> str | None:
    """Return the module of a name in `Closure.definitions`; None for a file, or for the order of imports."""
    if name == IMPORT_ORDER or name.startswith(f"{FILES}."):
        return None
    return name.rpartition(".")[0]


def _files_of(path: Path, *, is_deep: bool) -> list[Path]:
    """Return the files below a folder, or the file itself, without Python's own and hidden ones."""
    if path.is_file():
        return [path]
    found = path.rglob("*") if is_deep else path.glob("*")
    files = (each for each in found if each.suffix not in (".py", ".pyc") and each.is_file())
    return sorted(each for each in files if not any(map(_is_hidden, each.relative_to(path).parts)))[: MAX_FILES + 1]


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__pycache__"


def _hash(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _widest(places: Iterable[Place]) -> dict[str, Place]:
    """Return by name the place that counts most of each definition."""
    widest: dict[str, Place] = {}
    for place in sorted(places):  # by aspect last, so that the widest of a name wins
        widest[f"{place.module}.{place.name}"] = place
    return dict(sorted(widest.items()))
