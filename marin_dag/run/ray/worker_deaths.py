"""Worker deaths: a dead worker process as a one-line failure, with Ray's whole message in the log of its step."""

import contextlib
import re

from marin_dag.ledger.records import Failure
from marin_dag.run.failure import failure_of
from marin_dag.run.task import Task
from marin_dag.store.prefix import open_store
from marin_dag.store.redact import redact
from marin_dag.store.store import StoreError

WORKER_DIED = "A worker died or was killed"
WORKER_PID = re.compile(r"Worker PID: (\d+)")
EXIT_TYPE = re.compile(r"Worker exit type: (\w+)")
PID_IN_LOG = re.compile(r"^\S+ \S+ INFO \S+ attempt \S+ on \S+ pid (\d+), ", re.MULTILINE)
"""The first line of a log; see `run_attempt`."""
MEMORY_USED = re.compile(r"was ([\d.]+GB / [\d.]+GB)")


def failure_on_worker(task: Task, error: BaseException) -> Failure:
    """Return `error` as the failure of the attempt; for a dead process in one line, with the rest in the log."""
    failure = failure_of(task, error)
    cause = _cause_of_death(error)
    if not cause:
        return failure
    found = PID_IN_LOG.search(_append_to_log(task, failure.log_path, str(error)))
    process = "its process" if found is None else f"its process (pid {found[1]})"
    return failure.model_copy(update={"error": cause.format(process=process)})


def shortened(text: str) -> str:
    """Return a message of Ray, shortened if it is about a dead worker."""
    found = WORKER_PID.search(text)
    if not text.startswith(WORKER_DIED) or found is None:
        return text
    how = EXIT_TYPE.search(text)
    return f"a worker (pid {found[1]}) was killed or crashed{f' ({how[1]})' if how else ''}; see Ray's logs"


def _cause_of_death(error: BaseException) -> str:
    """Return text with a {process}; "" for other errors. By name: only a driver on Ray has imported Ray's errors."""
    match type(error).__name__:
        case "WorkerCrashedError":
            return "{process} ended without an error: killed (kill -9, or the system was out of memory), or crashed"
        case "OutOfMemoryError":
            used = MEMORY_USED.search(str(error))
            return f"Ray killed {{process}}: its machine was short of memory{f' ({used[1]})' if used else ''}"
    return ""


def _append_to_log(task: Task, path: str, text: str) -> str:
    """Append `text` to a log and return the log as it was; "" if there is none or the store does not answer."""
    with contextlib.suppress(FileNotFoundError, StoreError):
        store = open_store(task.prefix)  # for a bucket this asks the network
        log = store.read(path)
        # Ray lists the command lines of processes that use memory.
        store.write(path, log.rstrip(b"\n") + b"\nRay: " + redact(text).encode() + b"\n")
        return log.decode(errors="replace")
    return ""
