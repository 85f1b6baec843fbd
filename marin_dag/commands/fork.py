"""fork STEP --as NAME --set FIELD=VALUE: branch off a step; the branch is kept in the store under NAME."""

import shlex
from collections.abc import Sequence
from typing import Any

from marin_dag.commands.session import NOTHING_WOULD_RUN, Command, Session, program_words
from marin_dag.errors import UserError


def _fork(session: Session) -> int:
    parsed = session.parsed
    if not parsed.as_:
        raise UserError(f"fork {session.step}: say what to call it: --as NAME.")
    fork = session.forks.add(
        session.recipe(), base=session.step, name=parsed.as_, assignments=parsed.set, reason=parsed.reason
    )
    program = [*program_words(), *_other_arguments(session)]
    print(f"{fork.name} is a fork of {fork.base}: " + ", ".join(f"{k}={v}" for k, v in fork.changes.items()))
    print(f"plan it    {shlex.join([*program, '--dry-run', '--until', fork.name])}")
    print(f"run it     {shlex.join([*program, '--until', fork.name])}")
    print(f"forget it  {shlex.join([*program[:2], 'drop', fork.name, *program[2:]])}")
    return NOTHING_WOULD_RUN


def _other_arguments(session: Session) -> Sequence[str]:
    """The arguments that say which graph and which store, without those of this command."""
    kept = []
    words = iter(session.arguments)
    for word in words:
        if word in ("--as", "--set", "--reason"):
            next(words, None)
        elif word not in ("fork", session.step) and not word.startswith(("--as=", "--set=", "--reason=")):
            kept.append(word)
    return kept


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--as", dest="as_", metavar="NAME", help="(fork) the name of the branch")
    parser.add_argument("--reason", default="", metavar="TEXT", help="(fork) why, for those who find it later")


COMMAND = Command(
    "fork",
    "STEP --as NAME --set FIELD=VALUE",
    "branch off STEP, keep the branch under NAME",
    _fork,
    1,
    1,
    _add_arguments,
)
