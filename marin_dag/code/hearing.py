"""Hearing: which messages the code of a closure may read."""

from collections.abc import Iterable

from marin_dag.code.messages import Hears, Message, ancestors_of_builtin
from marin_dag.code.references import Aspect, Reference
from marin_dag.code.sources import Sources
from marin_dag.code.syntax import Target

USES_ITS_TEXT = "<methods>"
"""Among the names of a class that has methods, or is none: it may do anything with its text."""


class Hearing:
    """Everything in a closure that reads messages.

    Args:
        sources: the modules of the project.
        parts: what each definition reads.
    """

    def __init__(self, sources: Sources, parts: Iterable[Hears]) -> None:
        every = list(parts)
        self._sources = sources
        self._logs = any(each.logs for each in every)
        caught = [self._names(target) for each in every for target in each.caught]
        # A log that is read has the texts of the exceptions that are logged.
        self._is_all = self._logs or None in caught or any(each.everything for each in every)
        self._caught = frozenset(name for names in caught for name in names or ())

    def hears(self, message: Message) -> bool:
        """Return whether something may read the text of a message."""
        if message.raised is None:
            return self._logs
        if self._is_all or not message.raised:
            return True
        return any(self._may_catch(target) for target in message.raised)

    def _may_catch(self, raised: Target) -> bool:
        ancestors = self._ancestors(raised)
        if ancestors is None:
            return bool(self._caught)
        return USES_ITS_TEXT in ancestors or not self._caught.isdisjoint(ancestors)

    def _names(self, caught: Target) -> frozenset[str] | None:
        """Return the names of a class that is caught; None where it is no class."""
        if not self._sources.is_first_party(caught.module):
            return frozenset({str(caught).replace(":", ".")})
        places = self._sources.resolve(Reference(caught, (), Aspect.FULL), set())
        if not places or not all(self._sources.definition(place).is_class for place in places):
            return None
        return frozenset(f"{place.module}.{place.name}" for place in places)

    def _ancestors(self, raised: Target, below: frozenset[Target] = frozenset()) -> frozenset[str] | None:
        """Return the names of a class and its bases; None where they are not known."""
        if raised.module == "builtins":
            names = ancestors_of_builtin(raised.attribute or "")
            return frozenset(f"builtins.{name}" for name in names) or None
        if not self._sources.is_first_party(raised.module) or raised in below:
            return None
        found: set[str] = set()
        for place in self._sources.resolve(Reference(raised, (), Aspect.FULL), set()):
            definition = self._sources.definition(place)
            if not definition.is_class or definition.has_methods:
                return frozenset({USES_ITS_TEXT})
            found.add(f"{place.module}.{place.name}")
            for base in definition.bases:
                inherited = self._ancestors(_whole(base), below | {raised})
                if inherited is None:
                    return None
                found |= inherited
            if not definition.bases:
                return None
        return frozenset(found) or None


def _whole(reference: Reference) -> Target:
    """Return a reference with its attributes as one target."""
    target, chain = reference.target, reference.chain
    if not chain:
        return target
    return Target(".".join([str(target).replace(":", "."), *chain[:-1]]), chain[-1])
