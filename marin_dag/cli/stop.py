"""stop: let a detached run save its work and end, like Ctrl-C in a terminal; a second stop ends it at once."""

from typing import Any

from marin_dag.cli.attach import follow
from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.ledger.requests import END, STOP, Requests


def _stop(session: Session) -> int:
    from marin_dag.run.ray.detach import DetachedRuns

    runs = DetachedRuns(session.pipeline, session.store.prefix)
    job = runs.newest(session.parsed.names[0] if session.parsed.names else None)
    if job.has_ended:
        raise UserError(f"{job.name}: has ended already ({job.status.lower()}).")
    requests = Requests(session.store)
    is_last = session.parsed.now or bool(requests.of(job.name))
    runs.stop(job.name)  # before the request: a stop that Ray did not pass on must not count as the first of two
    requests.send(job.name, job.name, END if is_last else STOP)
    if is_last:
        print(f"{job.name}: ending now; running steps are cancelled, finished work is kept")
    else:
        print(f"{job.name}: stopping; running steps save their work; stop again to cancel them")
    follow(session, runs, job.name)
    return NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--now", action="store_true", help="(stop) cancel running steps, as a second stop does")


COMMAND = Command(
    "stop", "[JOB] [--now]", "let a detached run save its work and end; twice: end it now", _stop, 0, 1, _add_arguments
)
