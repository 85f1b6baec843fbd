"""stop: let a detached run save its work and end, as one Ctrl-C does to a run in a terminal."""

from marin_dag.commands.attach import follow
from marin_dag.commands.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError


def _stop(session: Session) -> int:
    from marin_dag.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    job = runs.newest(session.parsed.names[0] if session.parsed.names else None)
    if job.has_ended:
        raise UserError(f"{job.name} has ended already: {job.status.lower()}.")
    runs.stop(job.name)
    print(f"{job.name}: asked to stop; running steps save their work")
    follow(session, job.name)
    return NOTHING_WOULD_RUN


COMMAND = Command("stop", "[JOB]", "let a detached run save its work and end", _stop, 0, 1)
