"""drop NAME: delete a fork; its outputs stay."""

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.ledger.lease import Leases


def _drop(session: Session) -> int:
    holders = [held.holder for held in Leases(session.store).at_work().values()]
    fork = session.forks.drop(session.step)
    print(f"dropped {fork.name}, a fork of {fork.base}; its outputs stay in {session.store.prefix}")
    for holder in holders:
        if holder.name == fork.name:
            print(
                f"note       {holder.host} (pid {holder.pid}) is running {fork.name} and continues. To stop it, fork "
                f"again with the same settings, and `tell {fork.name} stop`"
            )
    # A run keeps the graph that it read at its start.
    if holders:
        print(f"note       a run that started after the fork was made still makes {fork.name}")
    return NOTHING_WOULD_RUN


COMMAND = Command("drop", "NAME", "delete a fork; its outputs stay", _drop, 1, 1)
