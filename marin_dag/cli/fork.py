"""fork STEP --as NAME and drop NAME: variants of steps that are stored under a name."""

from collections.abc import Iterator

from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.fork import made_by
from marin_dag.graph.graph import Graph
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import Records
from marin_dag.plan.accepted_code import apply_acceptances
from marin_dag.plan.forks import NewFork

OWN_OPTIONS = ("--as", "--set", "--reason")


@command("fork STEP --as NAME --set FIELD=VALUE", "make a variant of STEP and store it under NAME", *OWN_OPTIONS)
def fork(session: Session) -> int:
    parsed = session.parsed
    if not parsed.as_:
        raise UserError(f"fork {session.step}: give the fork a name: --as NAME.")
    graph = session.recipe()
    apply_acceptances(graph, session.store)
    new = session.forks.add(graph, base=session.step, name=parsed.as_, assignments=parsed.set, reason=parsed.reason)
    made, followers = new.fork, [step.name for step in new.followers]
    print(f"{made.name} is a fork of {made.base}: " + ", ".join(f"{k}={v}" for k, v in made.changes.items()))
    if followers:
        print(f"with it    {', '.join(followers)}")
    for line in (*_warnings(session, graph, new), *_milestones(session, graph, new)):
        print(line)
    # The followers need the fork, so naming them is enough.
    until = [word for name in followers or [made.name] for word in ("--until", name)]
    print(f"plan it    {session.line('--dry-run', *until, without=OWN_OPTIONS)}")
    print(f"run it     {session.line(*until, without=OWN_OPTIONS)}")
    print(f"drop it    {session.line('drop', made.name, without=OWN_OPTIONS)}")
    return NOTHING_WOULD_RUN


def _warnings(session: Session, graph: Graph, new: NewFork) -> Iterator[str]:
    """Yield that another step makes the same output, or else the lint warnings about the fork."""
    fork, step, _ = new
    maker = made_by(graph, step, base=fork.base)
    if maker is None:
        for warning in session.options.lint(session.recipe()).get(fork.name, ()):
            yield f"warning    {warning.text}"
            yield f"           to change it: drop the fork, and fork with {warning.options()}"
        return
    same = f"the output of {maker.name}" if maker.key == step.key else f"{maker.name} up to step {step.until:,}"
    yield f"warning    the fork makes no new output: it is {same}"
    later = "" if step.kind.stop_field is None else f", or a later {step.kind.stop_field}"
    yield f"           to change it: drop the fork, and fork with a setting that changes the output{later}"


def _milestones(session: Session, graph: Graph, new: NewFork) -> Iterator[str]:
    """Yield which milestones have to be published first, and which running attempts were asked to publish some."""
    saved = [lost for lost in session.forks.lost_by(graph, new.step, alone=True) if lost.is_saved]
    for lost in saved:
        yield f"it starts from step {lost.wanted:,}, which an earlier attempt saved but did not publish"
        stop = ("--set", f"{lost.stop}={lost.wanted}", "--until", lost.stop.rpartition(".")[0])
        yield f"first      {session.line(*stop, without=OWN_OPTIONS)}"
    requested, passed = session.forks.request_inputs(graph, new)
    for each in requested:
        yield f"requested  {each.step}, running on {each.where}, is to publish step {each.wanted:,}"
    for reason in passed:
        yield f"warning    {reason}"


@command("drop NAME", "delete a fork; its outputs stay")
def drop(session: Session) -> int:
    dropped = session.forks.drop(session.step)
    print(f"dropped {dropped.name}, a fork of {dropped.base}; its outputs stay in {session.store.prefix}")
    made = Records(session.store).labels()
    if own := sorted(name for name in made if f"/{name}".endswith(f"/{dropped.name}")):
        print(f"free it    {session.line('gc', *(word for name in own for word in ('--name', name)))}")
    holders = [held.holder for held in Leases(session.store).at_work().values()]
    if holders:  # a run keeps the graph that it read at its start
        where = ", ".join(sorted({f"{holder.host} (pid {holder.pid})" for holder in holders}))
        print(f"note       runs that began with the fork still make it: {where}")
    return NOTHING_WOULD_RUN
