"""Graph: every step that the targets need, in an order in which each comes after its inputs."""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.overrides import reference_named
from marin_dag.graph.step import Step
from marin_dag.values.changes import nearest

AnyStep = Step[Any]
GLOB = re.compile(r"[*?[]")
"""No name of a step has one of these characters."""


class GraphError(UserError):
    """A graph that cannot be, or a step that is not in it."""


class Graph:
    """The steps of a pipeline. Immutable."""

    def __init__(self, targets: Iterable[AnyStep]) -> None:
        self.targets = _steps(targets)
        self.steps = _ordered(self.targets)
        """Inputs first; otherwise as the recipe names them."""
        self._named: dict[str, AnyStep] = {}
        for step in self.steps:
            if step.name in self._named:
                raise GraphError(f"two steps are called {step.name!r}; rename one of them.")
            self._named[step.name] = step
        self._dependents: dict[str, list[AnyStep]] = {}
        for step in self.steps:
            for name in dict.fromkeys(item.step.name for _, item in step.inputs):
                self._dependents.setdefault(name, []).append(step)

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of `steps`."""
        return tuple(self._named)

    @property
    def last(self) -> frozenset[str]:
        """Names of the steps that nothing else needs."""
        return frozenset(name for name in self._named if name not in self._dependents)

    def step(self, name: str) -> AnyStep:
        if name not in self._named:
            owner, at, _ = name.partition("@")
            if at and owner in self._named:
                raise GraphError(f"{name!r} is a milestone, where a step belongs; write {owner!r}.")
            raise GraphError(self.unknown(name))
        return self._named[name]

    def unknown(self, name: str) -> str:
        """Return the message for a name that is no step's."""
        return f"there is no step {name!r}.{nearest(name, self._named)} `--dry-run` lists them all."

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def matching(self, pattern: str, option: str) -> tuple[str, ...]:
        """Return the names that match a glob, which `option` gave."""
        found = tuple(fnmatch.filter(self._named, pattern))
        if not found:
            wider = f"*{pattern.strip('*')}*"
            within = fnmatch.filter(self._named, wider)
            hint = f" {wider!r} matches {len(within)}." if within else nearest(pattern, self._named)
            raise GraphError(f"{option} {pattern!r} matches no step.{hint}")
        return found

    def named(self, word: str, option: str) -> tuple[str, ...]:
        """Return the step called `word`, or those that match it if it is a glob, which `option` gave."""
        return self.matching(word, option) if GLOB.search(word) else (self.step(word).name,)

    def ancestors(self, name: str) -> frozenset[str]:
        """Return the names of all that `name` needs, itself included."""
        return _reached(self.step(name), lambda step: [item.step for _, item in step.inputs])

    def descendants(self, name: str) -> frozenset[str]:
        """Return the names of all that needs `name`, itself included."""
        return _reached(self.step(name), lambda step: self._dependents.get(step.name, []))

    def with_targets(self, more: Iterable[AnyStep]) -> "Graph":
        return Graph([*self.targets, *more])

    def reference_named(self, text: str) -> OutputRef[AnyStep]:
        return reference_named(text, self.step)


def _steps(targets: object) -> tuple[AnyStep, ...]:
    found = tuple(targets) if isinstance(targets, Iterable) and not isinstance(targets, str | Step) else ()
    if not all(isinstance(item, Step) for item in found) or (not found and targets not in ([], ())):
        raise GraphError(
            f"the recipe's function returned {targets!r}, not a list of steps; return the steps that nothing else "
            "needs, such as [report]."
        )
    return found


def _ordered(targets: Sequence[AnyStep]) -> tuple[AnyStep, ...]:
    # Depth first without recursion: a chain of ten thousand steps is a graph too.
    order: dict[AnyStep, None] = {}
    on_path: dict[AnyStep, None] = {}
    pending = [(step, False) for step in reversed(targets)]
    while pending:
        step, is_left = pending.pop()
        if is_left:
            del on_path[step]
            order[step] = None
            continue
        if step in order:
            continue
        if step in on_path:
            names = [other.name for other in on_path]
            circle = " -> ".join([*names[names.index(step.name) :], step.name])
            raise GraphError(f"steps need each other in a circle: {circle}.")
        on_path[step] = None
        pending.append((step, True))
        needed = [item.step for _, item in step.inputs]
        pending.extend((other, False) for other in reversed(needed) if other not in order)
    return tuple(order)


def _reached(start: AnyStep, following: Callable[[AnyStep], Iterable[AnyStep]]) -> frozenset[str]:
    found = {start.name}
    pending = [start]
    while pending:
        for step in following(pending.pop()):
            if step.name not in found:
                found.add(step.name)
                pending.append(step)
    return frozenset(found)


@dataclasses.dataclass(frozen=True)
class Selection:
    """The steps that a command is about: those that every given option selects."""

    only: tuple[str, ...] = ()
    """Glob patterns, of which a step matches one."""
    until: tuple[str, ...] = ()
    """Steps or glob patterns; all that the steps need comes with them."""
    starting_from: tuple[str, ...] = ()
    """Steps or glob patterns; all that needs the steps comes with them."""
    force: tuple[str, ...] = ()
    """Steps or glob patterns of steps to run again although they are done."""

    def names(self, graph: Graph) -> frozenset[str]:
        selected = frozenset(graph.names)
        if self.only:
            selected &= frozenset().union(*(graph.matching(pattern, "--only") for pattern in self.only))
        if self.until:
            ends = (name for word in self.until for name in graph.named(word, "--until"))
            selected &= frozenset().union(*map(graph.ancestors, ends))
        if self.starting_from:
            starts = (name for word in self.starting_from for name in graph.named(word, "--from"))
            selected &= frozenset().union(*map(graph.descendants, starts))
        options = (("--only", self.only), ("--until", self.until), ("--from", self.starting_from))
        given = " ".join(f"{option} {name}" for option, names in options for name in names)
        for name in sorted(self.forced(graph)):
            if selected and name not in selected:
                raise GraphError(f"--force {name}: {given} leaves it out; select it too, or leave --force out.")
        if not selected:
            if not graph.names:
                raise GraphError("the recipe's function returned no steps; return those that nothing else needs.")
            raise GraphError(f"{given}: no step is selected by all of these; leave one of them out.")
        return selected

    def forced(self, graph: Graph) -> frozenset[str]:
        return frozenset(name for word in self.force for name in graph.named(word, "--force"))
