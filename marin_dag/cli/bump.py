"""bump STEP: where its version is written and what to write instead; --write makes the edit."""

from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.cli.versions import next_version, version_edit, version_origin
from marin_dag.errors import UserError, listed

MAX_NAMES = 8


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
    edit = version_edit(graph, step, version)
    before, after = edit.lines()
    print(f"{step.name}: version {step.version!r} -> {version!r}")
    origin = version_origin(step)
    if origin.name != step.name:
        print(f"  {step.version!r} is inherited from {origin.name} ({origin.version_declared or origin.declared})")
    print(f"  {edit.place}")
    print(f"  - {before.strip()}")
    print(f"  + {after.strip()}")
    again = frozenset().union(*(graph.descendants(name) for name in edit.steps))
    names = [name for name in graph.names if name in again]
    print(f"  makes again: {listed(names, MAX_NAMES)}")
    if session.parsed.write:
        edit.write()
        print(f"written. See what would run:  {session.line('--dry-run', without=['--write', '--to'])}")
    else:
        print(f"do it  {session.line('bump', step.name, '--write')}")
    return NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--write", action="store_true", help="(bump) edit the file")
    parser.add_argument(
        "--to", metavar="VERSION|DIR", help="(bump) the version to write, by default the next; (copy) where to"
    )


COMMAND = Command(
    "bump", "STEP [--write]", "where to raise the version of a versioned step, so that it is made again", _bump, 1, 1,
    _add_arguments, options=("--set",))  # fmt: skip
