"""Trace: the statements of a module whose effects at import other code can see, in order."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.effects import CONSTRUCTORS, MADE, Called, Effects, written
from marin_dag.code.pure import CONFIGURABLE, STATEFUL, calls_no_method, is_calm_base, is_pure, is_pure_builtin
from marin_dag.code.references import Aspect, Reference
from marin_dag.code.sources import Place, Sources
from marin_dag.code.summary import UNSEEN, Definition, Executed, Scanned, Summary
from marin_dag.code.syntax import Target


class Trace(NamedTuple):
    """The statements of a module that act when it is imported, or that read what these may change."""

    scans: tuple[Scanned, ...]
    """The statements in order; a statement that defines one name appears by that name only."""
    places: tuple[Place, ...]
    """The statements that define one name."""
    touched: frozenset[str]
    """Dotted names that statements with effects read and may therefore change."""
    is_foreign: bool
    """Whether they may change objects of other modules; if so, they count wherever the module is imported."""


class Traces:
    """Traces of modules, each computed once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._traces: dict[str, Trace | None] = {}
        self._readers: dict[str, bool] = {}
        self._found: dict[Called, list[Definition]] = {}
        self._answers: dict[Hashable, bool] = {}

    def of(self, name: str) -> Trace | None:
        """Return the trace of a module; None where the order of its statements does not matter."""
        if name not in self._traces:
            module = self._sources.module(name)
            self._traces[name] = None if module is None else self._trace(module)
        return self._traces[name]

    def is_foreign(self, name: str) -> bool:
        """Return whether importing a module changes what other modules may read."""
        trace = self.of(name)
        return trace is not None and trace.is_foreign

    def touched(self, name: str) -> frozenset[str]:
        trace = self.of(name)
        return frozenset() if trace is None else trace.touched

    def reads_others(self, name: str) -> bool:
        """Return whether importing a module reads state that other modules of the project may change."""
        if name not in self._readers:
            module = self._sources.module(name)
            self._readers[name] = module is not None and any(
                self._reads_others(module, each) for each in module.executed
            )
        return self._readers[name]

    def _trace(self, module: Summary) -> Trace | None:
        inert = [self._is_inert(each.statement.effects) for each in module.executed]
        if all(inert) and not module.rebound and not any(each.statement.changes for each in module.executed):
            return None
        every = list(zip(module.executed, inert, strict=True))
        acting = [each.statement for each, is_inert in every if not is_inert or each.statement.changes]
        touched = {name for each in acting for name in each.reads}
        is_foreign = not all(inert)
        kept = [
            each
            for each, is_inert in every
            if not is_inert or (is_foreign and each.statement.computes) or self._is_ordered(module, each, touched)
        ]
        scans = [each.scanned or UNSEEN._replace(digest=f"define {each.statement.binds[0]}") for each in kept]
        places = [Place(module.name, each.statement.binds[0], Aspect.FULL) for each in kept if each.scanned is None]
        targets = [target for name in touched for target in module.imports.get(name, [Target(module.name, name)])]
        dotted_names = frozenset(written((target, ())) for target in targets)
        return Trace(tuple(scans), tuple(places), dotted_names, is_foreign)

    def _is_ordered(self, module: Summary, executed: Executed, touched: set[str]) -> bool:
        """Return whether the order of an inert statement matters; `touched` are the names that acting ones read."""
        statement = executed.statement
        if statement.changes or not module.rebound.union(touched).isdisjoint((*statement.binds, *statement.reads)):
            return True
        if statement.is_import:
            assert executed.scanned is not None
            return any(map(self._sources.is_first_party, executed.scanned.loads))
        reads_value = any(
            name in module.definitions and not module.definitions[name].is_callable for name in statement.reads
        )
        return reads_value or self._reads_others(module, executed)

    def _reads_others(self, module: Summary, executed: Executed) -> bool:
        effects = executed.statement.effects
        if any(target.module.partition(".")[0] in CONFIGURABLE for target, _ in effects.called):
            return True
        if any(
            target.module == "logging" and chain for target, chain in (*effects.held, *effects.operands, *effects.used)
        ):
            return True
        targets = [target for name in executed.statement.reads for target in module.imports.get(name, ())]
        if any(each.module.partition(".")[0] in STATEFUL or self._is_own_module(each) for each in targets):
            return True
        return any(not each.is_callable for target in targets for each in self._definitions((target, ())))

    def _is_own_module(self, target: Target) -> bool:
        return self._sources.is_first_party(target.module) and self._sources.is_module(written((target, ())))

    def _is_inert(self, effects: Effects) -> bool:
        """Return whether code has no effect, given the definitions of its names."""
        return not effects.is_loud and self._known(
            effects,
            lambda: (
                all(map(self._calls_nothing, effects.called))
                and all(map(self._is_calm_base, effects.bases))
                and not any(map(self._is_lazy, effects.imported))
                and all(self._is_calm(each, is_asked=False) for each in effects.held)
                and all(self._is_calm(each, is_asked=True) for each in effects.operands)
                and all(map(self._is_data, effects.used))
            ),
        )

    def _known(self, question: Hashable, answer: Callable[[], bool]) -> bool:
        """Return an answer, computed once; inside its own computation, a question counts as True."""
        if question not in self._answers:
            self._answers[question] = True
            self._answers[question] = answer()
        return self._answers[question]

    def _calls_nothing(self, called: Called) -> bool:
        """Return whether a call with data changes nothing."""
        target, chain = called
        if not self._sources.is_first_party(target.module):
            return is_pure(written(called))
        found = self._definitions(called)
        if not found:
            return not target.is_certain and not chain and is_pure_builtin(str(target.attribute))
        every = list(self._with_bases(found))
        bases = [written((base.target, base.chain)) for each in every for base in each.bases]
        return (
            all(each.is_callable and not each.has_operators and self._is_inert(each.effects) for each in every)
            and all(calls_no_method(base) for base in bases if not self._sources.is_first_party(base))
            and (
                len(every) == 1 or all(CONSTRUCTORS.isdisjoint(each.methods) for each in every)
            )  # may call inherited ones
            and not self._has_attributes(called)
        )

    def _is_calm_base(self, base: Called) -> bool:
        """Return whether defining a subclass of a base runs no code of the base."""
        if not self._sources.is_first_party(base[0].module):
            return is_calm_base(written(base))
        found = self._definitions(base)
        return bool(found) and all(each.is_class for each in found) and self._is_calm(base, is_asked=False)

    def _is_lazy(self, imported: Called) -> bool:
        """Return whether an import may call the function `__getattr__` of a module."""
        is_own = self._sources.is_first_party(imported[0].module)
        return is_own and any(place.name == "__getattr__" for place in self._places(imported))

    def _is_calm(self, name: Called, *, is_asked: bool) -> bool:
        """Return whether reading a dotted name, or with `is_asked` using its object, runs no code of the project."""
        target, chain = name
        if not self._sources.is_first_party(target.module) or (self._is_own_module(target) and not chain):
            return True
        found = self._definitions(name)
        classes = list(self._with_bases(each for each in found if each.is_class))
        if self._is_lazy(name) or any(each.has_hook for each in classes):
            return False
        has_attributes = self._has_attributes(name)
        if has_attributes and classes:
            return not any(each.has_operators for each in classes) and all(
                map(self._is_made_calmly, self._places(name))
            )
        if has_attributes:  # of a value, which a property may compute
            return all(each.is_callable or self._is_data_value(each) for each in found)
        return not is_asked or all(map(self._is_calm_value, found))

    def _is_calm_value(self, value: Definition) -> bool:
        return value.is_callable or (
            self._is_inert(value.effects)
            and self._known(
                ("held", value.effects), lambda: all(self._is_calm(each, is_asked=True) for each in value.effects.held)
            )
        )

    def _is_made_calmly(self, place: Place) -> bool:
        """Return whether the statements that bind a class are inert, so that none of its attributes is a descriptor."""
        module = self._sources.module(place.module)
        statements = [] if module is None else [each.statement for each in module.executed]
        return all(self._is_inert(each.effects) for each in statements if place.name in each.binds)

    def _is_data(self, used: Called) -> bool:
        """Return whether a value holds no function and no object with methods of the project."""
        return not self._sources.is_first_party(used[0].module) or self._known(
            ("data", used), lambda: self._holds_data(used)
        )

    def _holds_data(self, used: Called) -> bool:
        target, chain = used
        if chain[-1:] == (MADE,):
            return all(map(self._makes_data, self._with_bases(self._definitions((target, chain[:-1])))))
        found = self._definitions(used)
        if not found or self._has_attributes(used):
            return not found and not target.is_certain
        places = self._places(used)
        touched = {name for place in places for name in self.touched(place.module)}
        is_touched = not touched.isdisjoint(f"{place.module}.{place.name}" for place in places)
        return not is_touched and all(map(self._is_data_value, found))

    def _is_data_value(self, value: Definition) -> bool:
        effects = value.effects
        return (
            not (value.is_callable or effects.has_lambda)
            and self._is_inert(effects)
            and all(map(self._is_data, (*effects.held, *effects.operands)))
            and all(self._is_data((target, (*chain, MADE))) for target, chain in effects.called)
        )

    def _makes_data(self, definition: Definition) -> bool:
        """Return whether the result of a function, or an instance of a class, has no methods of the project."""
        results = () if definition.is_class else definition.effects.called
        return definition.methods <= CONSTRUCTORS and all(
            self._is_data((target, (*chain, MADE))) for target, chain in results
        )

    def _has_attributes(self, named: Called) -> bool:
        """Return whether a dotted name has parts after the name of its definition."""
        places = self._places(named)
        aliases = [each for place in places for each in self._sources.definition(place).alias or ()]
        names = {place.name for place in places}
        return not all(written(each).rpartition(".")[2] in names for each in (named, *aliases))

    def _places(self, called: Called) -> tuple[Place, ...]:
        return self._sources.resolve(Reference(*called, Aspect.FULL), set())

    def _definitions(self, called: Called) -> list[Definition]:
        if called not in self._found:
            found = [self._sources.definition(place) for place in self._places(called) if place.name != "__all__"]
            self._found[called] = [each for each in found if each.alias is None]
        return self._found[called]

    def _with_bases(self, definitions: Iterable[Definition]) -> Iterator[Definition]:
        pending = list(definitions)
        seen: set[Reference] = set()
        while pending:
            definition = pending.pop()
            yield definition
            for base in definition.bases:
                if base not in seen:
                    seen.add(base)
                    pending += self._definitions((base.target, base.chain))
