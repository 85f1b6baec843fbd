"""Worker deaths: a process that Ray lost is told in one line, and the log of its step keeps all that Ray said of it."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

from marin_dag.ledger.records import Failure
from marin_dag.run.attempt import failure_of
from marin_dag.run.task import Task
from marin_dag.store.prefix import open_store
from marin_dag.store.redact import redact
from marin_dag.store.store import StoreError

SAID_BY_RAY = "A worker died or was killed"
NODE_OF_RAY = re.compile(r"Node ID: (\w+)")
PID_OF_RAY = re.compile(r"Worker PID: (\d+)")
EXIT_TYPE = re.compile(r"Worker exit type: (\w+)")
PROCESS_OF_LOG = re.compile(r"^\S+ \S+ INFO \S+ attempt \S+ on (\S+) pid (\d+), ", re.MULTILINE)
"""See `run_attempt`."""
MEMORY_USED = re.compile(r"was ([\d.]+GB / [\d.]+GB)")


class WorkerDeaths:
    """Those of one run; `host_of` says which host a node of Ray's is, by its id, and "" of one that is not known."""

    def __init__(self, host_of: Callable[[str], str]) -> None:
        self._host_of = host_of
        self._told: dict[tuple[str, str], Task] = {}
        """By host and process id: two hosts may have one id."""

    def failure(self, task: Task, error: BaseException) -> Failure:
        """`error` as the failure of the attempt, in few words where it is that its process died."""
        failure = failure_of(task, error)
        said = _what_killed_it(error)
        if not said:
            return failure
        log = _appended(task, failure.log_path, str(error))
        found = PROCESS_OF_LOG.search(log)
        if found is not None:
            self._told[found[1], found[2]] = task
        process = "its process" if found is None else f"its process (pid {found[2]})"
        return failure.model_copy(update={"error": said.format(process=process)})

    def remark(self, text: str) -> str:
        """What to show of a line of Ray's; "" where the step's own line has said it."""
        found = PID_OF_RAY.search(text)
        if not text.startswith(SAID_BY_RAY) or found is None:
            return text
        task = self._task_told(found[1], text)
        if task is not None:
            _appended(task, failure_of(task, RuntimeError()).log_path, text)
            return ""
        how = EXIT_TYPE.search(text)
        return f"a worker (pid {found[1]}) was killed or crashed{f' ({how[1]})' if how else ''}; Ray's logs have more"

    def _task_told(self, pid: str, text: str) -> Task | None:
        """The step whose own line has said it, once; Ray is asked for the host only of a process id that was told: it
        may be Ray itself that is dying."""
        node = NODE_OF_RAY.search(text)
        if node is None or not any(pid == told for _, told in self._told):
            return None
        return self._told.pop((self._host_of(node[1]), pid), None)


def _what_killed_it(error: Any) -> str:
    """By the names of Ray's errors, which only a driver that has loaded Ray meets; "" of every other."""
    match type(error).__name__:
        case "WorkerCrashedError":
            return "{process} died without a word: killed (kill -9, or the system was out of memory), or crashed"
        case "OutOfMemoryError":
            used = MEMORY_USED.search(str(error))
            return f"Ray killed {{process}}: its machine was short of memory{f' ({used[1]})' if used else ''}"
    return ""


def _appended(task: Task, path: str, text: str) -> str:
    """The log as it was, when `text` has been written behind it; "" if the attempt has none, or the store is silent."""
    with contextlib.suppress(FileNotFoundError, StoreError):
        store = open_store(task.prefix)  # of a bucket it asks the network
        log = store.read(path)
        said = redact(text)  # of who used the memory Ray lists the command lines
        store.write(path, log.rstrip(b"\n") + b"\nRay: " + said.encode() + b"\n")
        return log.decode(errors="replace")
    return ""
