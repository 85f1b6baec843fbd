"""--detach: start the driver as a job of the cluster at RAY_ADDRESS, and leave."""

import shlex
from pathlib import Path

from marin_dag.cli.attach import next_commands
from marin_dag.cli.session import NOTHING_WOULD_RUN, Session
from marin_dag.store.prefix import open_store


def detach(session: Session) -> int:
    """Submit the driver with this call's options and its prefixes in full."""
    from marin_dag.run.ray.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    line = session.line(without=["--detach", "--prefix", "--backend", "--copy-to"])
    prefixes = ["--prefix", session.store.prefix]
    target = () if session.parsed.copy_to is None else (open_store(session.parsed.copy_to).prefix,)
    prefixes += [word for prefix in target for word in ("--copy-to", prefix)]
    name = runs.submit([*shlex.split(line), *prefixes], Path.cwd(), not_sent=target)
    print(f"{name} runs on the cluster; this terminal may be closed")
    print("\n".join(next_commands(session)))
    return NOTHING_WOULD_RUN
