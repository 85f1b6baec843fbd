"""--detach: hand the run to the cluster of RAY_ADDRESS and leave."""

import shlex
from pathlib import Path

from marin_dag.commands.attach import how_to_go_on
from marin_dag.commands.session import NOTHING_WOULD_RUN, Session


def detach(session: Session) -> int:
    """Starts the driver there, with this call's options and the prefix spelt out."""
    from marin_dag.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    line = session.line(without=["--detach", "--prefix", "--backend"])
    name = runs.submit([*shlex.split(line), "--prefix", session.store.prefix], Path.cwd())
    print(f"{name} runs on the cluster; this terminal may be closed")
    print("\n".join(how_to_go_on(session)))
    return NOTHING_WOULD_RUN
