"""Fork of a step that a user made on the command line: its data, and the steps that it adds to a graph."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step, StepKind
from marin_dag.values.changes import text_change, value_change

Follow = Mapping[StepKind[Any, Any], Sequence[StepKind[Any, Any]]]
"""Kind of step to the kinds that are made for each of its forks too, as they are for the step it was forked from."""


class ForkError(UserError):
    """A fork that cannot be made or found."""


class Fork(BaseModel, frozen=True, extra="forbid"):
    """`name` is `base` with `changes`: dotted field to the text that the user typed."""

    name: str
    base: str
    changes: dict[str, str]
    author: str
    reason: str
    created: str


def forked(graph: Graph, fork: Fork) -> Step[Any]:
    changes = [text_change(field, text, graph.reference_named) for field, text in fork.changes.items()]
    return graph.step(fork.base).forked(fork.name, changes)


def followers(graph: Graph, fork: Step[Any], follow: Follow) -> list[Step[Any]]:
    """Return what follows the base of `fork` and, by `follow`, the fork too: the same steps, reading the fork."""
    base, kinds = fork.base, follow.get(fork.kind, ())
    found: list[Step[Any]] = []
    for step in graph.steps:
        if base is None or step.kind not in kinds:
            continue
        fields = [field for field, item in step.inputs if item.step.name == base.name and item.at is None]
        if fields:
            stem = step.name.removesuffix(base.name)
            name = f"{stem}{fork.name}" if stem != step.name else f"{step.name}/{fork.name}"
            found.append(step.forked(name, [value_change(field, fork) for field in fields]))
    return found


def made_by(graph: Graph, step: Step[Any], *, base: str) -> Step[Any] | None:
    """Return the step of `graph` whose output, or a milestone on its way, is all that a fork of `base` would make."""
    same = [other for other in graph.steps if other.digest == step.digest and (other.until or 0) >= (step.until or 0)]
    return min(same, key=lambda other: (other.until or 0, other.name != base), default=None)
