"""Trace: what importing a module does that other code can see, whole and in order."""

import hashlib
from typing import NamedTuple

from marin_dag.code.import_time import Calls
from marin_dag.code.messages import Hears
from marin_dag.code.plain import Called
from marin_dag.code.pure import is_plain, is_pure, is_pure_builtin
from marin_dag.code.reads import Reads
from marin_dag.code.references import Aspect, Reference
from marin_dag.code.scan import Scanned
from marin_dag.code.sources import Place, Sources
from marin_dag.code.summary import UNSEEN, Class, Definition, Executed, Summary
from marin_dag.code.syntax import Target


class Trace(NamedTuple):
    """The statements of a module that act when it is imported, or that read what these may change."""

    scanned: Scanned
    """The order of the statements, and those that are no definition of one name."""
    places: tuple[Place, ...]
    """Those that are."""
    is_foreign: bool
    """Whether they may change more than objects of the module: then they count wherever the module is imported."""
    touched: frozenset[str]
    """Names whose values depend on the order of the statements."""


class Traces:
    """The traces of some modules, each worked out once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._traces: dict[str, Trace | None] = {}
        self._quiet: dict[tuple[Called, bool], bool] = {}
        self._readers: dict[str, bool] = {}

    def of(self, module: Summary) -> Trace | None:
        """Return the trace of a module; None where the order of its statements does not matter."""
        if module.name not in self._traces:
            self._traces[module.name] = self._trace(module)
        return self._traces[module.name]

    def has_readers(self, module: Summary) -> bool:
        """Return whether importing the module reads what other modules of the project may have changed."""
        if module.name not in self._readers:
            self._readers[module.name] = any(self._reads_others(module, each) for each in module.executed)
        return self._readers[module.name]

    def _trace(self, module: Summary) -> Trace | None:
        loud = [each for each in module.executed if self._is_loud(each)]
        touched = set(module.rebound)
        for each in module.executed:
            touched.update(each.statement.changes)
            if each in loud:
                touched.update(each.statement.asks)
            if not each.statement.is_definition:
                touched.update(each.statement.binds)
            if "*" in each.statement.binds:
                touched.update(self._hidden_by_star(module, each))
        touched = self._fixpoint(module, touched)
        kept: list[Executed] = []
        for each in module.executed:
            statement = each.statement
            is_touched = not touched.isdisjoint((*statement.binds, *statement.reads, *statement.changes))
            if statement.is_import:
                is_star = "*" in statement.binds and bool(self._hidden_by_star(module, each))
                is_kept = (
                    is_star or not touched.isdisjoint(statement.binds) or (bool(kept) and self._loads_project(each))
                )
            else:
                is_kept = each in loud or is_touched or (bool(loud) and self._reads_state(module, each))
            if is_kept:
                kept.append(each)
        if not loud:
            while kept and kept[-1].statement.is_import and touched.isdisjoint(kept[-1].statement.binds):
                kept.pop()
        if not kept:
            return None
        scans = [each.scanned or _naming(each) for each in kept]
        defined = [each.statement.binds[0] for each in kept if each.scanned is None]
        places = tuple(Place(module.name, name, Aspect.FULL) for name in defined)
        return Trace(_joined(scans), places, bool(loud), frozenset(touched))

    def _hidden_by_star(self, module: Summary, star: Executed) -> set[str]:
        """Return the names of the module that `from module import *` binds, too."""
        assert star.scanned is not None
        found = [Target(name, defined) for name in star.scanned.loads for defined in module.definitions]
        found = [target for target in found if self._sources.is_first_party(target.module)]
        hidden = [target for target in found if self._sources.resolve(Reference(target, (), Aspect.FULL), set())]
        return {target.attribute for target in hidden if target.attribute is not None}

    @staticmethod
    def _fixpoint(module: Summary, touched: set[str]) -> set[str]:
        """Return the names whose values may be, hold or depend on those of `touched`."""
        grown = True
        while grown:
            grown = False
            for each in module.executed:
                statement = each.statement
                if not touched.isdisjoint(statement.reads) and not touched.issuperset(statement.binds):
                    touched.update(statement.binds)
                    grown = True
                held = [name for name in statement.reads if _is_variable(module, name)]
                if statement.is_variable and not touched.isdisjoint(statement.binds) and not touched.issuperset(held):
                    touched.update(held)  # `also = words`: a change of one is a change of the other
                    grown = True
        return touched

    def _loads_project(self, executed: Executed) -> bool:
        assert executed.scanned is not None
        return any(self._sources.is_first_party(name) for name in executed.scanned.loads)

    def _reads_state(self, module: Summary, executed: Executed) -> bool:
        """Return whether a statement reads a variable of the project, or calls what may read one."""
        if any(_is_variable(module, name) for name in executed.statement.reads):
            return True
        return self._reads_others(module, executed) or self._calls_project(executed.statement.calls)

    def _reads_others(self, module: Summary, executed: Executed) -> bool:
        targets = [target for name in executed.statement.reads for target in module.imports.get(name, ())]
        for target in targets:
            if self._sources.is_first_party(target.module):
                places = self._sources.resolve(Reference(target, (), Aspect.FULL), set())
                if not all(self._sources.definition(place).is_callable for place in places):
                    return True
        return False

    def _calls_project(self, calls: Calls) -> bool:
        called = (*calls.called, *(passed for _, passed in calls.passed))
        return any(self._sources.is_first_party(target.module) for target, _ in called)

    def _is_loud(self, executed: Executed) -> bool:
        return not self._are_quiet(executed.statement.calls) or any(
            self._registers(each, frozenset()) for each in executed.classes
        )

    def _are_quiet(self, calls: Calls) -> bool:
        return (
            not calls.is_loud
            and all(self._is_quiet(called) for called in calls.called)
            and all(self._is_quiet(called, of_result=True) for called in calls.factories)
            and all(self._is_passive(asked) for asked in calls.asked)
            and all(self._is_kept(callees) or self._is_quiet_if_called(passed) for callees, passed in calls.passed)
        )

    def _is_quiet(self, called: Called, *, of_result: bool = False) -> bool:
        asked = called, of_result
        if asked not in self._quiet:
            self._quiet[asked] = True  # of what calls itself, unless something else is found
            self._quiet[asked] = self._find_quiet(called, of_result)
        return self._quiet[asked]

    def _find_quiet(self, called: Called, of_result: bool) -> bool:
        target, chain = called
        path = [*([] if target.attribute is None else [target.attribute]), *chain]
        if not self._sources.is_first_party(target.module):
            is_builtin = not target.is_certain and len(path) == 1 and is_pure_builtin(path[0])
            return is_builtin or is_pure(".".join([target.module, *path]))
        places = self._sources.resolve(Reference(target, chain, Aspect.FULL), set())
        found = [(place, self._sources.definition(place)) for place in places if place.name != "__all__"]
        direct = [(place, definition) for place, definition in found if definition.alias is None]
        if not direct:
            return not target.is_certain and is_pure_builtin(path[0])
        return all(
            definition.is_callable
            and (place.name == path[-1] or len(found) > len(direct))
            and self._are_quiet(definition.result_calls if of_result else definition.calls)
            for place, definition in direct
        )

    def _is_passive(self, asked: Target) -> bool:
        """Return whether operators, indices and attributes of what a name stands for have no effect."""
        if not self._sources.is_first_party(asked.module) or self._sources.is_module(_dotted(asked)):
            return True
        places = self._sources.resolve(Reference(asked, (), Aspect.FULL), set())
        definitions = [self._sources.definition(place) for place in places if place.name != "__all__"]
        return all(
            each.is_callable or each.is_plain or each.alias is not None or self._makes_passive(each)
            for each in definitions
        )

    def _makes_passive(self, definition: Definition) -> bool:
        """Return whether a name stands for an instance of a class whose instances are passive."""
        places = [place for made_by in definition.made_by for place in self._sources.resolve(made_by, set())]
        makers = [self._sources.definition(place) for place in places]
        if not makers:
            return bool(definition.made_by) and all(
                is_plain(".".join([_dotted(made_by.target), *made_by.chain])) for made_by in definition.made_by
            )
        return all(each.is_class and all(map(self._is_passive_class, each.classes)) for each in makers)

    def _is_passive_class(self, made: Class) -> bool:
        inherited = [place for base in made.bases for place in self._sources.resolve(base, set())]
        return made.is_passive and all(
            self._is_passive_class(each)
            for place in inherited
            for each in self._sources.definition(place).classes
            if each != made
        )

    def _is_kept(self, callees: tuple[Called, ...]) -> bool:
        """Return whether functions of the project are called, which are quiet only if they call no argument."""
        return any(self._sources.is_first_party(target.module) for target, _ in callees)

    def _is_quiet_if_called(self, passed: Called) -> bool:
        target, chain = passed
        if not self._sources.is_first_party(target.module):
            return True
        places = self._sources.resolve(Reference(target, chain, Aspect.FULL), set())
        definitions = [self._sources.definition(place) for place in places]
        return all(self._are_quiet(each.calls) for each in definitions if each.is_callable)

    def _registers(self, made: Class, above: frozenset[Class]) -> bool:
        """Return whether making the class runs `__init_subclass__` or a metaclass of the project, also a base's."""
        if made in above:  # `class Base(Base)` over an import of that name
            return False
        if made.has_hook and above:
            return True
        if any(self._sources.is_first_party(target.module) for target in made.keywords):
            return True
        return any(
            self._registers(inherited, above | {made})
            for base in made.bases
            for place in self._sources.resolve(base, set())
            for inherited in self._sources.definition(place).classes
        )


def _dotted(target: Target) -> str:
    return str(target).replace(":", ".")


def _is_variable(module: Summary, name: str) -> bool:
    definition = module.definitions.get(name)
    return definition is not None and not definition.is_callable


def _naming(executed: Executed) -> Scanned:
    """Return a definition by its name alone."""
    (name,) = executed.statement.binds
    return UNSEEN._replace(digest=f"define {name}")


def _joined(scans: list[Scanned]) -> Scanned:
    """Return several statements in order as one."""
    return Scanned(
        hashlib.sha256("\n".join(each.digest for each in scans).encode()).hexdigest(),
        "",
        tuple(dict.fromkeys(reference for each in scans for reference in each.references)),
        tuple(dict.fromkeys(name for each in scans for name in each.loads)),
        Reads(
            any(each.reads.documentation for each in scans),
            any(each.reads.files for each in scans),
            tuple(dict.fromkeys(path for each in scans for path in each.reads.paths)),
            tuple(dict.fromkeys(name for each in scans for name in each.reads.modules)),
            tuple(dict.fromkeys(name for each in scans for name in each.reads.environment)),
        ),
        tuple(message for each in scans for message in each.messages),
        Hears(
            any(each.hears.logs for each in scans),
            any(each.hears.everything for each in scans),
            tuple(dict.fromkeys(target for each in scans for target in each.hears.caught)),
        ),
        tuple(dict.fromkeys(what for each in scans for what in each.opaque)),
    )
