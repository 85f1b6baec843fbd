"""drop NAME: forget a fork; what it made stays."""

from collections.abc import Iterator

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.fork import Fork
from marin_dag.ledger.lease import Holder, Leases


def _drop(session: Session) -> int:
    at_work = Leases(session.store).at_work()
    may_be_waited_for = bool(at_work) and not at_work.keys().isdisjoint(_needed(session))
    fork = session.forks.drop(session.step)
    print(f"dropped {fork.name}, a fork of {fork.base}; what it made stays in {session.store.prefix}")
    for note in _of_runs(fork, [held.holder for held in at_work.values()]):
        print(f"note       {note}")
    if may_be_waited_for:
        print(
            "note       a run that only waits for what others make is not seen here; if it began after "
            f"{fork.name} was made, it makes it all the same"
        )
    return NOTHING_WOULD_RUN


def _needed(session: Session) -> frozenset[str]:
    """Digests of the fork and of all that it needs; nothing where the graph cannot be built, often for its sake."""
    try:
        graph = session.recipe()
        return frozenset(graph.step(name).digest for name in graph.ancestors(session.step))
    except UserError:
        return frozenset()


def _of_runs(fork: Fork, holders: list[Holder]) -> Iterator[str]:
    """What becomes of the fork in runs that have read it: a run goes by the graph that it read when it began."""
    at_work = {_driver(holder) for holder in holders if holder.name == fork.name}
    # Who has begun something before the fork was made has not read it.
    before = {_driver(holder) for holder in holders if holder.since < fork.created}
    for driver in sorted({_driver(holder) for holder in holders} - (before - at_work)):
        if driver in at_work:
            yield (
                f"{fork.name} is at work in the run on {driver}, which goes on with it and with what waits for it. To "
                f"stop it, fork it again with the same settings, and `tell {fork.name} stop`"
            )
        else:
            yield f"the run on {driver}, if it began after the fork was made, makes it all the same, and waits for it"


def _driver(holder: Holder) -> str:
    return f"{holder.host} (pid {holder.pid})"


COMMAND = Command(
    "drop",
    "NAME",
    "forget a fork",
    _drop,
    1,
    1,
    advice={"--dry-run": "it only forgets the fork, and what that made stays; `ls` shows the forks"},
)
