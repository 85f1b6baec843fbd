"""drop NAME: forget a fork; what it made stays."""

from marin_dag.commands.session import NOTHING_WOULD_RUN, Command, Session


def _drop(session: Session) -> int:
    fork = session.forks.drop(session.step)
    print(f"dropped {fork.name}, a fork of {fork.base}; what it made stays in {session.store.prefix}")
    return NOTHING_WOULD_RUN


COMMAND = Command(
    "drop",
    "NAME",
    "forget a fork",
    _drop,
    1,
    1,
    advice={"--dry-run": "it only forgets the fork, and what that made stays; `ls` shows the forks"},
)
