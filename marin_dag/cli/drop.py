"""drop NAME: delete a fork; its outputs stay."""

from collections.abc import Iterator

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.forks import Fork
from marin_dag.ledger.lease import Holder, Leases


def _drop(session: Session) -> int:
    at_work = Leases(session.store).at_work()
    is_needed = bool(at_work) and not at_work.keys().isdisjoint(_needed(session))
    fork = session.forks.drop(session.step)
    print(f"dropped {fork.name}, a fork of {fork.base}; its outputs stay in {session.store.prefix}")
    for note in _notes(fork, [held.holder for held in at_work.values()]):
        print(f"note       {note}")
    if is_needed:
        print(
            "note       a run that only waits for the steps of another run is not listed; such a run still makes "
            f"{fork.name} if it started after the fork was made"
        )
    return NOTHING_WOULD_RUN


def _needed(session: Session) -> frozenset[str]:
    """Return the digests of the fork and its ancestors; none where the graph cannot be built, often because of it."""
    try:
        graph = session.recipe()
        return frozenset(graph.step(name).digest for name in graph.ancestors(session.step))
    except UserError:
        return frozenset()


def _notes(fork: Fork, holders: list[Holder]) -> Iterator[str]:
    """Yield the effect of the drop on runs, which keep the graph that they read at their start."""
    making = {_driver(holder) for holder in holders if holder.name == fork.name}
    # A driver that started a step before the fork existed has not read the fork.
    older = {_driver(holder) for holder in holders if holder.since < fork.created}
    for driver in sorted({_driver(holder) for holder in holders} - (older - making)):
        if driver in making:
            yield (
                f"the run on {driver} is making {fork.name} and continues. To stop it, fork again with the same "
                f"settings, and `tell {fork.name} stop`"
            )
        else:
            yield f"the run on {driver} still makes {fork.name} if it started after the fork was made"


def _driver(holder: Holder) -> str:
    return f"{holder.host} (pid {holder.pid})"


COMMAND = Command("drop", "NAME", "delete a fork; its outputs stay", _drop, 1, 1)
