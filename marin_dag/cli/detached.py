"""--detach, attach and stop: a driver that runs as a job of the cluster at RAY_ADDRESS."""

import shlex
from pathlib import Path
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.ledger.requests import END, STOP, Requests
from marin_dag.run.interrupts import INTERRUPTED
from marin_dag.store.prefix import open_store


def detach(session: Session) -> int:
    """Submit the driver with this call's options and its prefixes in full."""
    line = session.line(without=["--detach", "--prefix", "--backend", "--copy-to"])
    prefixes = ["--prefix", session.store.prefix]
    target = () if session.parsed.copy_to is None else (open_store(session.parsed.copy_to).prefix,)
    prefixes += [word for prefix in target for word in ("--copy-to", prefix)]
    name = _runs(session).submit([*shlex.split(line), *prefixes], Path.cwd(), not_sent=target)
    print(f"{name} runs on the cluster; this terminal may be closed")
    _print_next_commands(session)
    return NOTHING_WOULD_RUN


@command("attach [JOB]", "follow a detached run; Ctrl-C leaves it running")
def attach(session: Session) -> int:
    runs = _runs(session)
    return _follow(session, runs, _job(session, runs).name)


@command("stop [JOB] [--now]", "let a detached run save its work and end; twice: end it now", "--now")
def stop(session: Session) -> int:
    runs = _runs(session)
    job = _job(session, runs)
    if job.has_ended:
        raise UserError(f"{job.name}: has ended already ({job.status.lower()}); `attach {job.name}` prints its log.")
    requests = Requests(session.store)
    is_last = session.parsed.now or bool(requests.of(job.name))
    runs.stop(job.name)  # before the request: a stop that Ray did not pass on must not count as the first of two
    requests.send(job.name, job.name, END if is_last else STOP)
    if is_last:
        print(f"{job.name}: ending now; running steps are cancelled, finished work is kept")
    else:
        print(f"{job.name}: stopping; running steps save their work; stop again to cancel them")
    _follow(session, runs, job.name)
    return NOTHING_WOULD_RUN


def _runs(session: Session) -> Any:
    from marin_dag.run.ray.detach import DetachedRuns  # imports Ray

    return DetachedRuns(session.pipeline, session.store.prefix)


def _job(session: Session, runs: Any) -> Any:
    return runs.newest(session.parsed.names[0] if session.parsed.names else None)


def _follow(session: Session, runs: Any, name: str) -> int:
    """Print the job's log; return the exit code of the run, or INTERRUPTED after Ctrl-C."""
    print(f"{name}: following; Ctrl-C leaves it running")
    try:
        job = runs.follow(name)
    except KeyboardInterrupt:
        print(f"\n{name} continues without this terminal")
        _print_next_commands(session)
        return INTERRUPTED
    print(f"{name}: {job.status.lower()}{': ' if job.message else ''}{job.message}")
    return {"SUCCEEDED": NOTHING_WOULD_RUN, "STOPPED": INTERRUPTED}.get(job.status, FAILED)


def _print_next_commands(session: Session) -> None:
    print(f"follow it  {session.line('attach')}")
    print(f"stop it    {session.line('stop')}")
