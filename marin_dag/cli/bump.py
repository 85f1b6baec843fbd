"""bump STEP: the line that declares its version, and what to write there so that the step is made again."""

import inspect
from typing import Any, NamedTuple

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError, listed
from marin_dag.graph.declared import Declared
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step

MAX_NAMES = 8


class Bump(NamedTuple):
    """The edit that raises a version."""

    where: Declared
    what: str
    steps: tuple[str, ...]
    """Names of the steps whose version it raises."""


def _bump(session: Session) -> int:
    graph = session.graph()
    step = graph.step(session.step)
    if step.policy != "versioned" or step.version is None:
        raise UserError(
            f"bump {step.name}: its policy is {step.policy}: its code is its identity, and an edit makes it again "
            "without a version."
        )
    version = session.parsed.to or next_version(step.version)
    if version == step.version:
        raise UserError(f"bump {step.name} --to {version}: that is its version; name another.")
    bump = bump_of(graph, step, version)
    print(f"{step.name}: version {step.version!r} -> {version!r}")
    print(f"  {bump.where}: {bump.what}")
    again = frozenset().union(*(graph.descendants(name) for name in bump.steps))
    print(f"  makes again: {listed([name for name in graph.names if name in again], MAX_NAMES)}")
    print(f"then see what would run:  {session.line('--dry-run', without=['--to'])}")
    return NOTHING_WOULD_RUN


def next_version(version: str) -> str:
    """Return the version after this one: a count goes up, anything else gets one appended."""
    head, dot, last = version.rpartition(".")
    return f"{head}{dot}{int(last) + 1}" if last.isdigit() else f"{version}.1"


def bump_of(graph: Graph, step: Step[Any], version: str) -> Bump:
    """Return the smallest edit after which `step`, and what is derived from it, has `version`."""
    instead = f'write "{version}" in place of version "{step.version}"'
    if step.version_declared is not None:
        sharing = tuple(other.name for other in graph.steps if _origin(other).version_declared == step.version_declared)
        return Bump(step.version_declared, instead, sharing)
    if step.base is None:
        function = inspect.unwrap(step.kind.function).__code__
        sharing = tuple(
            other.name for other in graph.steps if other.kind is step.kind and not _origin(other).version_declared
        )
        return Bump(Declared(function.co_filename, function.co_firstlineno), instead, sharing)
    if step.declared is None:
        raise UserError(f"{step.name}: a fork made on the command line; bump {step.base.name}, which it inherits.")
    sharing = tuple(other.name for other in graph.steps if _comes_from(other, step))
    added = f'append .with_version("{version}") to {step.name}, which inherits version "{step.version}"'
    return Bump(step.declared, f"{added} from {_origin(step).name}", sharing)


def _origin(step: Step[Any]) -> Step[Any]:
    """Return the step from which `step` inherits its version: itself, or one that it is derived from."""
    while step.version_declared is None and step.base is not None:
        step = step.base
    return step


def _comes_from(step: Step[Any] | None, root: Step[Any]) -> bool:
    """Return whether `step` inherits its version from `root`, or the same line makes both."""
    while step is not None and step.name != root.name and step.declared != root.declared:
        step = None if step.version_declared is not None else step.base
    return step is not None


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--to", metavar="VERSION|DIR", help="(bump) the version to write, by default the next; (copy) where to"
    )


COMMAND = Command(
    "bump", "STEP", "where to raise the version of a versioned step, so that it is made again", _bump, 1, 1,
    _add_arguments, options=("--set",))  # fmt: skip
