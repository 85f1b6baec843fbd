"""attach: follow a detached run from any terminal; Ctrl-C leaves the run alone."""

from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.run.interrupts import INTERRUPTED


def _attach(session: Session) -> int:
    from marin_dag.run.ray.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    return follow(session, runs, runs.newest(session.parsed.names[0] if session.parsed.names else None).name)


def follow(session: Session, runs: Any, name: str) -> int:
    """Print the job's log; return the exit code of the run, or INTERRUPTED after Ctrl-C."""
    print(f"{name}: following; Ctrl-C leaves it running")
    try:
        job = runs.follow(name)
    except KeyboardInterrupt:
        print(f"\n{name} continues without this terminal")
        print("\n".join(next_commands(session)))
        return INTERRUPTED
    print(f"{name}: {job.status.lower()}{': ' if job.message else ''}{job.message}")
    return {"SUCCEEDED": NOTHING_WOULD_RUN, "STOPPED": INTERRUPTED}.get(job.status, FAILED)


def next_commands(session: Session) -> list[str]:
    """Return the lines that follow and stop the run."""
    return [
        f"follow it  {session.line('attach', without=['--detach'])}",
        f"stop it    {session.line('stop', without=['--detach'])}",
    ]


COMMAND = Command("attach", "[JOB]", "follow a detached run; Ctrl-C leaves it running", _attach, 0, 1)
