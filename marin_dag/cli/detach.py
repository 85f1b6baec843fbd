"""--detach: hand the run to the cluster of RAY_ADDRESS and leave."""

import shlex
from pathlib import Path

from marin_dag.cli.attach import how_to_go_on
from marin_dag.cli.session import NOTHING_WOULD_RUN, Session
from marin_dag.store.prefix import open_store


def detach(session: Session) -> int:
    """Starts the driver there, with this call's options and the prefix spelt out."""
    from marin_dag.run.ray.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    line = session.line(without=["--detach", "--prefix", "--backend", "--copy-to"])
    spelt_out = ["--prefix", session.store.prefix]
    beside = () if session.parsed.copy_to is None else (open_store(session.parsed.copy_to).prefix,)
    spelt_out += [word for prefix in beside for word in ("--copy-to", prefix)]
    name = runs.submit([*shlex.split(line), *spelt_out], Path.cwd(), not_sent=beside)
    print(f"{name} runs on the cluster; this terminal may be closed")
    print("\n".join(how_to_go_on(session)))
    return NOTHING_WOULD_RUN
