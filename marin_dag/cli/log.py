"""log STEP: the log of the attempt that made it, or of the newest one that tried."""

import sys

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.ledger.records import Record, Records, attempt_path
from marin_dag.plan.compare import newest_hint, record_named
from marin_dag.store.store import Store


def _log(session: Session) -> int:
    graph = session.graph()
    records = Records(session.store)
    found = record_named(records, graph, session.step)
    if found is None:
        step = graph.step(session.step)
        found = records.find(step.key)
        path = newest_log(session.store, step.name, step.digest) if found is None else _log_of(found)
    else:
        path = _log_of(found)
    try:
        data = None if path is None else session.store.read(path)
    except FileNotFoundError:
        data = None
    if path is None or data is None:
        said = f"; {session.store.url(path)} is gone" if path else ""
        before = newest_hint(records, session.step, "log") if session.step in graph else ""
        raise UserError(f"log {session.step}: no attempt has left a log here{said}.{before}")
    print(session.store.url(path), file=sys.stderr)
    print(data.decode(errors="replace"), end="")
    return NOTHING_WOULD_RUN


def _log_of(record: Record) -> str:
    # Where its output is: the digest in that folder is the one of then.
    return f"{record.output_path.partition(record.attempt)[0]}{record.attempt}.log"


def newest_log(store: Store, name: str, digest: str) -> str | None:
    """The path of the log of the newest attempt at a step; None where none has left one."""
    folder = attempt_path(name, digest, "")
    entries = store.list(folder.rstrip("/"))
    logs = [entry for entry in entries if entry.path.endswith(".log") and "/" not in entry.path.removeprefix(folder)]
    return max(logs, key=lambda entry: (entry.updated, entry.path)).path if logs else None


COMMAND = Command(
    "log",
    "STEP",
    "the log of the attempt that made it, or of the newest that tried",
    _log,
    1,
    1,
    options=("--set",),
)
