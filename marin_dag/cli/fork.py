"""fork STEP --as NAME --set FIELD=VALUE: a variant of a step, stored under NAME."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.forks import Fork, changes_of_execution, forked, made_by
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.plan.reasons import render

OWN_OPTIONS = ("--as", "--set", "--reason")


def _fork(session: Session) -> int:
    parsed = session.parsed
    if not parsed.as_:
        raise UserError(f"fork {session.step}: give the fork a name: --as NAME.")
    graph = session.recipe()
    fork = session.forks.add(graph, base=session.step, name=parsed.as_, assignments=parsed.set, reason=parsed.reason)
    print(f"{fork.name} is a fork of {fork.base}: " + ", ".join(f"{k}={v}" for k, v in fork.changes.items()))
    names = session.forks.names_with(graph, fork)
    if names[1:]:
        print(f"with it    {', '.join(names[1:])}")
    for line in (*_warnings(session, graph, fork), *_milestones(session, graph, fork)):
        print(line)
    # The followers need the fork, so naming them is enough.
    until = [word for name in names[1:] or names for word in ("--until", name)]
    print(f"plan it    {session.line('--dry-run', *until, without=OWN_OPTIONS)}")
    print(f"run it     {session.line(*until, without=OWN_OPTIONS)}")
    print(f"drop it    {session.line('drop', fork.name, without=OWN_OPTIONS)}")
    return NOTHING_WOULD_RUN


def _warnings(session: Session, graph: Graph, fork: Fork) -> Iterator[str]:
    """Yield that another step makes the same output, or else the lint warnings about the fork."""
    step = forked(graph, fork)
    maker = made_by(graph, step, base=fork.base)
    if maker is None:
        for warning in session.options.lint(session.recipe()).get(fork.name, ()):
            yield f"warning    {warning.text}"
            yield f"           to change it: drop the fork, and fork with {warning.options()}"
        return
    yield f"warning    the fork makes no new output: {_shared_with(maker, step)}"
    if execution := changes_of_execution(fork, step.kind):
        yield f"           {_set_on(maker.name, execution)}"
    later = "" if step.kind.stop_field is None else f", or a later {step.kind.stop_field}"
    yield f"           to change it: drop the fork, and fork with a setting that changes the output{later}"


def _milestones(session: Session, graph: Graph, fork: Fork) -> Iterator[str]:
    """Yield which milestones have to be published first, and which running attempts were asked to publish some."""
    saved = [lost for lost in session.forks.lost_by(graph, fork, alone=True) if lost.is_saved]
    for lost in saved:
        yield f"it starts from step {lost.wanted:,}, which an earlier attempt saved but did not publish"
        stop = ("--set", f"{lost.stop}={lost.wanted}", "--until", lost.stop.rpartition(".")[0])
        yield f"first      {session.line(*stop, without=OWN_OPTIONS)}"
    requested, passed = session.forks.tell_what_it_needs(graph, fork)
    for each in requested:
        yield f"requested  {each.step}, running on {each.where}, is to publish step {each.wanted:,}"
    for reason in passed:
        yield f"warning    {render(reason)}"


def _shared_with(maker: Step[Any], step: Step[Any]) -> str:
    if maker.key == step.key:
        return f"it is the output of {maker.name}"
    return f"it is {maker.name} up to step {step.until:,} of {maker.until:,}"


def _set_on(name: str, settings: Mapping[str, str]) -> str:
    fields = " and ".join(settings)
    change = "changes" if len(settings) == 1 else "change"
    options = shlex.join(word for field, text in settings.items() for word in ("--set", f"{name}.{field}={text}"))
    return f"{fields} only {change} how the step runs; set it on {name} itself: {options}"


COMMAND = Command(
    "fork",
    "STEP --as NAME --set FIELD=VALUE",
    "make a variant of STEP and store it under NAME",
    _fork,
    1,
    1,
    options=("--as", "--set", "--reason"),
)
