"""fork STEP --as NAME --set FIELD=VALUE: branch off a step; the branch is kept in the store under NAME."""

import shlex
from collections.abc import Mapping
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.fork import changes_of_execution, made_by
from marin_dag.graph.step import Step
from marin_dag.plan.forks import kept_fork
from marin_dag.plan.reasons import render


def _fork(session: Session) -> int:
    parsed = session.parsed
    if not parsed.as_:
        raise UserError(f"fork {session.step}: say what to call it: --as NAME.")
    graph = session.recipe()
    fork = session.forks.add(graph, base=session.step, name=parsed.as_, assignments=parsed.set, reason=parsed.reason)
    own = ("--as", "--set", "--reason")
    print(f"{fork.name} is a fork of {fork.base}: " + ", ".join(f"{k}={v}" for k, v in fork.changes.items()))
    names = session.forks.names_with(graph, fork)
    if names[1:]:
        print(f"with it    {', '.join(names[1:])}")
    # What follows needs the fork itself; to name both would say the same twice.
    until = [word for name in names[1:] or names for word in ("--until", name)]
    step = kept_fork(graph, fork)
    if (maker := made_by(graph, step, base=fork.base)) is not None:
        print(f"note       it makes nothing of its own: {_shared_with(maker, step)}")
        if execution := changes_of_execution(fork, step.kind):
            print(f"           {_set_on(maker.name, execution)}")
        later = "" if step.kind.stop_field is None else f", or a later {step.kind.stop_field}"
        print(f"           if that is not meant: drop it, and fork with a setting that changes what is made{later}")
    # The cure of a remark is a fork with other settings: of one that makes nothing the note above says what to do.
    for remark in session.remarks(session.recipe()).get(fork.name, ()) if maker is None else ():
        print(f"note       {remark.text}")
        print(f"           if that is not meant: drop it, and fork with {remark.options()}")
    saved = [lost for lost in session.forks.lost_by(graph, fork, alone=True) if lost.is_saved]
    for lost in saved:
        print(f"it starts from step {lost.wanted:,} of a trajectory that saved it and did not publish it")
        stop = ("--set", f"{lost.stop}={lost.wanted}", "--until", lost.stop.rpartition(".")[0])
        print(f"first      {session.line(*stop, without=own)}")
    told, passed = session.forks.tell_what_it_needs(graph, fork)
    for each in told:
        print(f"told       {each.step}, running on {each.where}, to publish step {each.wanted:,}")
    for reason in passed:
        print(f"note       {render(reason)}")
    print(f"plan it    {session.line('--dry-run', *until, without=own)}")
    print(f"run it     {session.line(*until, without=own)}")
    print(f"forget it  {session.line('drop', fork.name, without=own)}")
    return NOTHING_WOULD_RUN


def _shared_with(maker: Step[Any], step: Step[Any]) -> str:
    if maker.key == step.key:
        return f"its output is that of {maker.name}"
    return f"it is {maker.name} up to step {step.until:,} of {maker.until:,}"


def _set_on(name: str, settings: Mapping[str, str]) -> str:
    fields = " and ".join(settings)
    change, are = ("changes", "is") if len(settings) == 1 else ("change", "are")
    options = shlex.join(word for field, text in settings.items() for word in ("--set", f"{name}.{field}={text}"))
    return f"{fields} {change} how it runs alone, and {are} set on {name} itself: {options}"


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--as", dest="as_", metavar="NAME", help="(fork) the name of the branch")
    parser.add_argument("--reason", default="", metavar="TEXT", help="(fork, tell) why, for those who find it later")


COMMAND = Command(
    "fork",
    "STEP --as NAME --set FIELD=VALUE",
    "branch off STEP, keep the branch under NAME",
    _fork,
    1,
    1,
    _add_arguments,
    options=("--set",),
    advice={"--dry-run": "it writes the fork down and starts nothing; make it, then plan it: --dry-run --until NAME"},
)
