"""stop: let a detached run save its work and end, as one Ctrl-C does to a run in a terminal; again: end it at once."""

from typing import Any

from marin_dag.cli.attach import follow
from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.ledger.requests import END, STOP, Tellings


def _stop(session: Session) -> int:
    from marin_dag.run.ray.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    job = runs.newest(session.parsed.names[0] if session.parsed.names else None)
    if job.has_ended:
        raise UserError(f"{job.name} has ended already: {job.status.lower()}.")
    tellings = Tellings(session.store)
    is_last = session.parsed.now or bool(tellings.of(job.name))
    runs.stop(job.name)  # before it is noted: what was not passed on must not count as the first of two
    tellings.tell(job.name, job.name, END if is_last else STOP)
    if is_last:
        print(f"{job.name}: asked to end at once; what runs is cancelled, what was finished is kept")
    else:
        print(f"{job.name}: asked to stop; running steps save their work; stop again to cancel them")
    follow(session, runs, job.name)
    return NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--now", action="store_true", help="(stop) cancel running steps, as stopping twice does")


COMMAND = Command(
    "stop", "[JOB] [--now]", "let a detached run save its work and end; twice: end it now", _stop, 0, 1, _add_arguments
)
