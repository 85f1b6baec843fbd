"""Trace: what importing a module does that other code can see, in order."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.effects import BASE, IMPORT, INSTANCE, ITEM, LOUD, QUIET, TYPE, Effects
from marin_dag.code.methods import CONSTRUCTORS
from marin_dag.code.objects import Called, written
from marin_dag.code.pure import CONFIGURABLE, READERS, STATEFUL, is_pure, is_pure_builtin
from marin_dag.code.references import Aspect, Reference
from marin_dag.code.sources import Place, Sources
from marin_dag.code.summary import UNSEEN, Definition, Executed, Scanned, Summary
from marin_dag.code.syntax import Target


class Trace(NamedTuple):
    """The statements of a module that act when it is imported, or that read what these may change."""

    scans: tuple[Scanned, ...]
    """The statements in order; of those that define one name only that name."""
    places: tuple[Place, ...]
    """The statements that define one name."""
    touched: frozenset[str]
    """Dotted names that statements with effects read and may therefore change."""
    is_foreign: bool
    """Whether they may change more than objects of the module: then they count wherever the module is imported."""


_BASES_THAT_REGISTER = frozenset({"sqlalchemy.orm.DeclarativeBase", "sqlmodel.SQLModel", "yaml.YAMLObject"})
"""Classes of packages that keep the classes below them."""
_BASES_THAT_CALL_NOTHING = frozenset({"abc", "enum", "equinox", "pydantic", "typing", "typing_extensions"})


class Traces:
    """The traces of some modules, each worked out once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._traces: dict[str, Trace | None] = {}
        self._readers: dict[str, bool] = {}
        self._found: dict[Called, list[Definition]] = {}

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
        """Return whether importing a module reads what other modules of the project may have changed."""
        if name not in self._readers:
            module = self._sources.module(name)
            self._readers[name] = module is not None and any(
                self._reads_others(module, each) for each in module.executed
            )
        return self._readers[name]

    def _trace(self, module: Summary) -> Trace | None:
        is_quiet = [self._are_quiet(each.statement.effects) for each in module.executed]
        if all(is_quiet) and not module.rebound and not any(each.statement.changes for each in module.executed):
            return None
        every = list(zip(module.executed, is_quiet, strict=True))
        acting = [each.statement for each, quiet in every if not quiet or each.statement.changes]
        touched = {name for each in acting for name in each.reads}
        is_foreign = not all(is_quiet)
        kept = [
            each
            for each, quiet in every
            if not quiet or (is_foreign and each.statement.computes) or self._is_ordered(module, each, touched)
        ]
        scans = [each.scanned or UNSEEN._replace(digest=f"define {each.statement.binds[0]}") for each in kept]
        places = [Place(module.name, each.statement.binds[0], Aspect.FULL) for each in kept if each.scanned is None]
        targets = [target for name in touched for target in module.imports.get(name, [Target(module.name, name)])]
        dotted_names = frozenset(written((target, ())) for target in targets)
        return Trace(tuple(scans), tuple(places), dotted_names, is_foreign)

    def _is_ordered(self, module: Summary, executed: Executed, touched: set[str]) -> bool:
        """Return whether the order of a quiet statement matters; statements with effects read the names `touched`."""
        statement = executed.statement
        if statement.changes or not module.rebound.union(touched).isdisjoint((*statement.binds, *statement.reads)):
            return True
        if statement.is_import:
            assert executed.scanned is not None
            return any(map(self._sources.is_first_party, executed.scanned.loads))
        return (
            any(name in module.definitions and not module.definitions[name].is_callable for name in statement.reads)
            or any(self._sources.is_first_party(target.module) for target, _ in statement.effects.called)
            or self._reads_others(module, executed)
        )

    def _reads_others(self, module: Summary, executed: Executed) -> bool:
        effects = executed.statement.effects
        if any(target.module.partition(".")[0] in CONFIGURABLE for target, _ in effects.called):
            return True
        if any(target.module == "logging" and chain for target, chain in effects.asked):
            return True
        targets = [target for name in executed.statement.reads for target in module.imports.get(name, ())]
        if any(each.module.partition(".")[0] in STATEFUL or self._is_own_module(each) for each in targets):
            return True
        return any(not each.is_callable for target in targets for each in self._definitions((target, ())))

    def _is_own_module(self, target: Target) -> bool:
        return self._sources.is_first_party(target.module) and self._sources.is_module(written((target, ())))

    def _definitions(self, called: Called) -> list[Definition]:
        if called not in self._found:
            places = self._places(called)
            found = [self._sources.definition(place) for place in places if place.name != "__all__"]
            self._found[called] = [each for each in found if each.alias is None]
        return self._found[called]

    def _are_quiet(self, effects: Effects) -> bool:
        """Return whether nothing that is called, or asked, directly or by what is called, has an effect."""
        if effects == QUIET:  # most of them
            return True
        pending = [effects]
        seen: set[Called] = set()
        seen_passed: set[Called] = set()
        seen_asked: set[Called] = set()
        while pending:
            each = pending.pop()
            if each.is_loud:
                return False
            for called in each.called:
                if called in seen:
                    continue
                seen.add(called)
                inner = self._effects_of(called)
                if inner is None:
                    return False
                pending += inner
            if any(self._sources.is_first_party(target.module) for target, _ in each.factories):
                return False
            for called in each.passed:
                if called not in seen_passed:
                    seen_passed.add(called)
                    pending += self._effects_of_passed(called)
            for asked in each.asked:
                if asked not in seen_asked:
                    seen_asked.add(asked)
                    pending += self._answers_of(asked)
        return True

    def _answers_of(self, asked: Called) -> list[Effects]:
        """Return the effects of operators, indices, attributes and iteration on the object of a name."""
        target, chain = asked
        if chain[-1:] == (TYPE,):
            return self._effects_of_type((target, chain[:-1]))
        if chain[-1:] == (IMPORT,) and target.attribute is not None:
            return self._lazy_names((target, chain[:-1]))
        if chain[-1:] == (IMPORT,):
            is_module = self._sources.is_first_party(target.module) and self._sources.module(target.module) is not None
            return [LOUD] if is_module else []
        if chain[-1:] in ((BASE,), (ITEM,)):
            if not self._sources.is_first_party(target.module):
                return [LOUD] if chain[-1] == BASE and written((target, chain[:-1])) in _BASES_THAT_REGISTER else []
            found = self._definitions((target, chain[:-1]))
            is_hidden = chain[-1] == BASE and not (found and all(each.is_class for each in found))
            return [LOUD] if is_hidden or any(each.has_hook for each in self._with_bases(found)) else []
        if not self._sources.is_first_party(target.module) or (self._is_own_module(target) and not chain):
            return []
        if chain[-1:] == (INSTANCE,):  # of a class, or of one that a function calls
            found = self._definitions((target, chain[:-1]))
            return [each.answers for each in self._with_bases(self._classes_of(found))]
        found = self._definitions(asked)
        descriptors = [
            name for each in found if each.is_class for name in each.answers.asked if name[1][-1:] == (INSTANCE,)
        ]
        values = [each for each in found if each.has_hook or not each.is_callable]
        if any(each.has_hook and (chain or not each.is_callable) for each in values):
            return [LOUD]
        put = [each for place in self._places(asked) for each in self._changes_of(place)] if values else []
        effects = [*(each.effects for each in values), *put]
        held = [QUIET._replace(asked=(*each.asked, *each.passed)) for each in effects]
        inside = self._called_by(values)
        if any(map(self._is_unknown, effects)) or not all(each.is_class for each in inside):
            return [LOUD]
        inside += [made for each in put for called in each.called for made in self._definitions(called)]
        inside += [each for each in values if each.is_class]
        made = self._with_bases(self._classes_of(inside))
        return [
            *(QUIET._replace(asked=tuple(descriptors)), *held, *self._lazy_names(asked)),
            *(each.answers for each in made),
        ]

    def _lazy_names(self, named: Called) -> list[Effects]:
        """Return the effects of the functions `__getattr__` of modules that make what a name stands for."""
        places = [place for place in self._places(named) if place.name == "__getattr__"]
        return [self._sources.definition(place).effects for place in places]

    def _classes_of(self, definitions: Iterable[Definition]) -> list[Definition]:
        """Return the classes among definitions and all that these call: their objects may hold instances of them."""
        pending = list(definitions)
        found: dict[int, Definition] = {}
        while pending:
            each = pending.pop()
            if id(each) not in found:
                found[id(each)] = each
                pending += [*self._called_by([each]), *self._with_bases([each])]
        return [each for each in found.values() if each.is_class]

    def _effects_of_type(self, named: Called) -> list[Effects]:
        """Return the effects of making a field of a type, through the names that stand for others."""
        target, chain = named
        if not self._sources.is_first_party(target.module) or (self._is_own_module(target) and not chain):
            return []
        types = self._definitions(named)
        asked = [each for other in types if not other.is_callable for each in other.effects.asked]
        inner = tuple((name, (*path, TYPE)) for name, path in asked)
        return [QUIET._replace(asked=inner), *(each.effects for each in types if each.is_callable)]

    def _effects_of_passed(self, called: Called) -> list[Effects]:
        """Return the effects of a package that calls what it gets."""
        target, chain = called
        if not self._sources.is_first_party(target.module) or (self._is_own_module(target) and not chain):
            return []
        found = self._definitions(called)
        attributes = self._attributes(called)
        if found and all(each.is_plain for each in found):
            return [LOUD] if attributes and attributes[-1] not in READERS else []
        if any(self._is_called_by_packages(base) for each in found for base in each.bases):
            return [LOUD]
        if attributes and self._is_field(called, found, attributes):
            return []
        if len(attributes) == 1 and found and all(each.is_class for each in found):
            return self._effects_of_method(found, attributes[0])
        made = self._called_by(found)
        is_whole = not attributes and len(self._places(called)) == len(found)
        if is_whole and made and all(each.is_class for each in made) and not any(each.is_callable for each in found):
            return [each.effects for each in made]
        return [LOUD] if (inner := self._effects_of(called)) is None else inner

    def _attributes(self, called: Called) -> tuple[str, ...]:
        """Return the attributes of a dotted name after that of its definition, those of its aliases first."""
        aliases = [each for place in self._places(called) for each in self._sources.definition(place).alias or ()]
        found: tuple[str, ...] = ()
        for target, chain in (*aliases, called):
            while chain and self._is_own_module(target):
                target, chain = Target(written((target, ())), chain[0]), chain[1:]
            found += chain
        return found

    def _is_field(self, called: Called, found: list[Definition], attributes: tuple[str, ...]) -> bool:
        """Return whether some attributes lead to data: to a field of an instance or class, or a member of an enum."""
        name, *rest = attributes
        owners = [made for each in found for made in ([each] if each.is_class else self._called_by([each]))]
        if not owners or not all(each.is_class for each in owners) or rest not in ([], ["name"], ["value"]):
            return False
        asked = [each for other in found if not other.is_class for each in other.effects.asked]
        held = [made for each in asked if each[1][-1:] != (INSTANCE,) for made in self._definitions(each)]
        is_held = all(each.is_class for each in held) and not any(map(self._changes_of, self._places(called)))
        classes = list(self._with_bases(owners))
        is_method = any(name in each.methods for each in classes)
        return is_held and not is_method and any(name in each.fields for each in classes)

    def _places(self, called: Called) -> tuple[Place, ...]:
        return self._sources.resolve(Reference(*called, Aspect.FULL), set())

    def _changes_of(self, place: Place) -> list[Effects]:
        """Return the effects of the statements of a module that change the object of one of its names."""
        module = self._sources.module(place.module)
        statements = [] if module is None else [each.statement for each in module.executed]
        return [each.effects for each in statements if each.changes and place.name in each.reads]

    def _is_unknown(self, effects: Effects) -> bool:
        """Return whether a value comes from an unknown function, as a file object does."""
        others = [each for each in effects.called if not self._sources.is_first_party(each[0].module)]
        return any(not is_pure(written(each)) for each in others)

    def _effects_of_method(self, classes: list[Definition], name: str) -> list[Effects]:
        owners = [each for each in self._with_bases(classes) if name in each.methods]
        return [each.methods[name] for each in owners] or [LOUD]

    def _is_called_by_packages(self, base: Reference) -> bool:
        """Return whether a package calls methods of the classes below a base of its own."""
        package = base.target.module.partition(".")[0]
        return not self._sources.is_first_party(package) and package not in _BASES_THAT_CALL_NOTHING

    def _called_by(self, definitions: Iterable[Definition]) -> list[Definition]:
        return [made for each in definitions for called in each.effects.called for made in self._definitions(called)]

    def _effects_of(self, called: Called) -> list[Effects] | None:
        """Return the effects of a call; None where they are not known."""
        target, chain = called
        path = [*([] if target.attribute is None else [target.attribute]), *chain]
        if not self._sources.is_first_party(target.module):
            is_builtin = not target.is_certain and len(path) == 1 and is_pure_builtin(path[0])
            return [] if is_builtin or is_pure(written(called)) else None
        places = self._places(called)
        found = self._definitions(called)
        if not found:
            return [] if not target.is_certain and is_pure_builtin(path[0]) else None
        if path[-1] in READERS and all(each.is_plain for each in found):
            return []
        names = {place.name for place in places if self._sources.definition(place).alias is None}
        is_whole = path[-1] in names or not self._attributes(called)
        if not is_whole or not all(each.is_callable for each in found):
            return None
        run = [each for each in found if any(map(self._is_called_by_packages, each.bases))]
        methods = [each.methods[name] for each in run for name in each.methods.keys() - CONSTRUCTORS]
        return [*(each.effects for each in found), *methods]

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
