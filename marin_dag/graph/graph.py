"""Graph: every step that the targets need, in an order in which each comes after its inputs."""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input, replace_inputs
from marin_dag.graph.step import Milestone, Step
from marin_dag.values.changes import ChangeError, apply_text, nearest, value_at

AnyStep = Step[Any]


class GraphError(UserError):
    """A graph that cannot be, or a step that is not in it."""


class Graph:
    """Immutable; an override makes another graph."""

    def __init__(self, targets: Iterable[AnyStep]) -> None:
        self.targets = _steps(targets)
        self.steps = _ordered(self.targets)
        """Inputs first; otherwise as the recipe names them."""
        self._named: dict[str, AnyStep] = {}
        for step in self.steps:
            if step.name in self._named:
                raise GraphError(
                    f"two steps are called {step.name!r}; a name is how a person picks one step. Rename one of them."
                )
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
        """The step called `name`."""
        if name not in self._named:
            trajectory, at, _ = name.partition("@")
            if at and trajectory in self._named:
                raise GraphError(f"{name!r} is a state of {trajectory!r}, and a step is named here: {trajectory!r}.")
            raise GraphError(f"there is no step {name!r}.{nearest(name, self._named)} `--dry-run` lists them all.")
        return self._named[name]

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def matching(self, pattern: str, option: str) -> tuple[str, ...]:
        """Names that match a glob, which `option` gave."""
        found = tuple(fnmatch.filter(self._named, pattern))
        if not found:
            wider = f"*{pattern.strip('*')}*"
            within = fnmatch.filter(self._named, wider)
            said = f" {wider!r} matches {len(within)}." if within else nearest(pattern, self._named)
            raise GraphError(f"{option} {pattern!r} matches no step.{said}")
        return found

    def ancestors(self, name: str) -> frozenset[str]:
        """Names of all that `name` needs, itself included."""
        return _reached(self.step(name), lambda step: [item.step for _, item in step.inputs])

    def descendants(self, name: str) -> frozenset[str]:
        """Names of all that needs `name`, itself included."""
        return _reached(self.step(name), lambda step: self._dependents.get(step.name, []))

    def with_targets(self, more: Iterable[AnyStep]) -> "Graph":
        """This graph and further targets."""
        return Graph([*self.targets, *more])

    def input_named(self, text: str) -> Milestone[Any]:
        """What a person means by "STEP" or "STEP@MILESTONE"."""
        name, separator, milestone = text.partition("@")
        step = self.step(name)
        if not separator:
            return Milestone(step, milestone=None)
        if not milestone.isdigit():
            raise GraphError(f"{text!r}: a milestone is a step number, such as {name}@1000.")
        return step.at(step=int(milestone))

    def override(self, name: str, field: str, text: str) -> "Graph":
        """This graph with one field of one step set; steps derived from it by `fork` or `then` are derived again."""
        target = self.step(name)
        below = self.descendants(name)

        def input_named(text: str) -> Milestone[Any]:
            milestone = self.input_named(text)
            if milestone.step.name in below:
                raise GraphError(f"{milestone.step.name} needs {name}, which closes a circle.")
            return milestone

        return _Rederivation(target, field, text, input_named).graph(self)


class _Rederivation:
    def __init__(self, target: AnyStep, field: str, text: str, input_named: Callable[[str], Milestone[Any]]) -> None:
        self._target, self._field, self._text, self._input_named = target, field, text, input_named
        self._new: dict[AnyStep, AnyStep] = {}

    def graph(self, graph: Graph) -> Graph:
        for step in _ordered(graph.targets, with_bases=True):
            self._new[step] = self._derived(step)
        return Graph(self._new[step] for step in graph.targets)

    def _derived(self, step: AnyStep) -> AnyStep:
        base = step.base.step if isinstance(step.base, Milestone) else step.base
        if base is not None and self._new[base] is not base:
            new = self._again(step)
        elif any(self._new[item.step] is not item.step for _, item in step.inputs):
            new = self._with_new_inputs(step)
        else:
            new = step
        if step is not self._target:
            return new
        config = apply_text(
            new.config, self._field, self._text, owner=step.name, input_named=lambda text: self._input_named(text)
        )
        return _like(new, config, {**new.changes, self._field: value_at(config, self._field)})

    def _again(self, step: AnyStep) -> AnyStep:
        changes = {field: self._renewed(value) for field, value in step.changes.items()}
        base = self._renewed(step.base)
        assert base is not None
        before = base.step if isinstance(base, Milestone) else base
        kept = self._stop_behind_start(step, before)
        try:
            derive = base.fork if step.derivation == "fork" else base.then
            new = derive(step.name, **changes, **kept)
        except ChangeError as error:
            raise ChangeError(
                f"{error}\n{step.name} is {before.name} with its own {', '.join(step.changes)}, for which "
                f"{self._target.name}.{self._field}={self._text} leaves no place: set the whole field of "
                f"{step.name} too, or of neither."
            ) from None
        own = {field: value for field, value in new.changes.items() if field not in kept}
        return _like(new, replace_inputs(new.config, self._replaced), own, like=step)

    def _stop_behind_start(self, step: AnyStep, base: AnyStep) -> dict[str, Any]:
        """The stop that `step` has and keeps, where that of its base now lies at or before its own start.

        Such a stop is of the part of the trajectory that both share, and none of what leaves it later.
        """
        stop, start = step.kind.stop_field, step.kind.continues
        if stop is None or start is None or stop in step.changes:
            return {}
        begins = next((item.milestone for field, item in step.inputs if field == start), None)
        if begins is None or value_at(base.config, stop) > begins:
            return {}
        return {stop: value_at(step.config, stop)}

    def _renewed(self, value: Any) -> Any:
        if isinstance(value, Step):
            return self._new[value]
        if isinstance(value, Milestone):
            new = self._new[value.step]
            return Milestone(new, milestone=value.milestone, subpath=value.subpath, is_growing=value.is_growing)
        if isinstance(value, Input):
            return self._replaced(value)
        if isinstance(value, dict):
            return {key: self._renewed(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._renewed(item) for item in value)
        return replace_inputs(value, self._replaced)

    def _with_new_inputs(self, step: AnyStep) -> AnyStep:
        changes = {field: self._renewed(value) for field, value in step.changes.items()}
        base = self._renewed(step.base)
        return _like(step, replace_inputs(step.config, self._replaced), changes, base=base)

    def _replaced(self, item: Input[Any]) -> Input[Any]:
        step = item.step
        new = self._new.get(step, step)
        milestone = new.until if item.follows_stop else item.milestone
        return Input(
            new,
            milestone=milestone,
            subpath=item.subpath,
            follows_stop=item.follows_stop,
            is_growing=item.is_growing,
        )


def _like(
    step: AnyStep, config: Any, changes: dict[str, Any], *, base: Any = None, like: AnyStep | None = None
) -> AnyStep:
    other = like or step
    return Step(
        step.kind,
        step.name,
        config,
        policy=other.policy,
        version=other.version,
        resources=other.resources,
        base=base or step.base,
        changes=changes if step.base is not None else None,
        derivation=step.derivation,
        declared=other.declared,
        version_declared=other.version_declared,
    )


def _steps(targets: object) -> tuple[AnyStep, ...]:
    """What a recipe's function gave, if it is a list of steps."""
    found = tuple(targets) if isinstance(targets, Iterable) and not isinstance(targets, str | Step) else ()
    if not all(isinstance(item, Step) for item in found) or (not found and targets not in ([], ())):
        raise GraphError(
            f"the recipe's function returned {targets!r}, where a list of steps belongs; return the steps that nothing "
            "else needs, such as [report]."
        )
    return found


def _ordered(targets: Sequence[AnyStep], *, with_bases: bool = False) -> tuple[AnyStep, ...]:
    """Depth first without recursion: a chain of ten thousand steps is a graph too."""
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
        if with_bases and step.base is not None:
            needed.append(step.base.step if isinstance(step.base, Milestone) else step.base)
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
    """Which steps a command is about; what several options select is what all of them do."""

    only: tuple[str, ...] = ()
    """Glob patterns; a step that one of them matches."""
    until: tuple[str, ...] = ()
    """These steps and all that they need."""
    starting_from: tuple[str, ...] = ()
    """These steps and all that needs them."""
    force: tuple[str, ...] = ()
    """Steps to run again although they are done."""

    def names(self, graph: Graph) -> frozenset[str]:
        """Names of the selected steps."""
        selected = frozenset(graph.names)
        if self.only:
            selected &= frozenset().union(*(graph.matching(pattern, "--only") for pattern in self.only))
        if self.until:
            selected &= frozenset().union(*(graph.ancestors(name) for name in self.until))
        if self.starting_from:
            selected &= frozenset().union(*(graph.descendants(name) for name in self.starting_from))
        options = (("--only", self.only), ("--until", self.until), ("--from", self.starting_from))
        said = " ".join(f"{option} {name}" for option, names in options for name in names)
        for name in self.force:
            graph.step(name)
            if selected and name not in selected:
                raise GraphError(f"--force {name}: {said} leaves it out; select it too, or leave --force out.")
        if not selected:
            if not graph.names:
                raise GraphError("the recipe's function returned no steps; return those that nothing else needs.")
            raise GraphError(f"{said}: no step is selected by all of these; leave one of them out.")
        return selected
