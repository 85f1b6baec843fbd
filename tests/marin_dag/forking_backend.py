"""ForkingBackend: runs each attempt in a process of its own, which outlives its driver as a cluster's worker does.

Driver and workers share a folder: a worker leaves its process id, its published milestones and its outcome there.
Workers are forked by a process without threads, since a lock that another thread holds stays held in the child.
"""

import os
import pickle
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin_dag.graph.resources import Resources
from marin_dag.ledger.progress import Progress
from marin_dag.run.attempt import run_attempt
from marin_dag.run.local.backend import SequentialFanOut
from marin_dag.run.task import Listener, Outcome, Task


class WorkerDiedError(Exception):
    """The process of an attempt is gone and has left no outcome."""

    is_transient = True


class ForkingBackend:
    """See Backend."""

    max_running = max_alike = 3

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._running: dict[str, Task] = {}
        self._seen: set[str] = set()
        reading, self._tasks = os.pipe()
        if os.fork() == 0:
            os.close(self._tasks)
            _fork_workers(reading, folder)
        os.close(reading)

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
        self._listener = listener

    def submit(self, task: Task) -> None:
        data = pickle.dumps(task)
        (self._folder / f"{task.attempt}.task").write_bytes(data)
        self._running[task.attempt] = task
        os.write(self._tasks, f"{task.attempt}\n".encode())
        self._listener.started(task.key)

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        time.sleep(min(timeout_seconds, 0.02))
        for path in self._folder.glob("*.published"):
            if path.name not in self._seen:
                self._seen.add(path.name)
                self._listener.published(path.read_text())
        ended = [self._outcome(attempt) for attempt in list(self._running)]
        return [outcome for outcome in ended if outcome is not None]

    def _outcome(self, attempt: str) -> Outcome | None:
        is_alive = _is_alive(self._folder / f"{attempt}.pid")  # first: a worker leaves its outcome, then ends
        try:
            outcome: Outcome = pickle.loads((self._folder / f"{attempt}.outcome").read_bytes())
        except FileNotFoundError:
            if is_alive:
                return None
            task = self._running[attempt]
            outcome = Outcome(task, "failed", failure=task.failure_of(WorkerDiedError("killed")))
        del self._running[attempt]
        return outcome

    def request_stop(self) -> None:
        for attempt in self._running:
            (self._folder / f"{attempt}.stop").touch()

    def withdraw(self, key: str) -> None:
        """See Backend. A submitted task starts at once."""

    def cancel(self, key: str) -> None:
        for attempt, task in list(self._running.items()):
            if task.key == key:
                (self._folder / f"{attempt}.stop").touch()

    def close(self) -> None:
        os.close(self._tasks)


class _FolderChannel:
    def __init__(self, folder: Path, attempt: str) -> None:
        self._folder, self._attempt, self._num_published = folder, attempt, 0

    def started(self, key: str) -> None: ...

    def report(self, key: str, progress: Progress) -> None: ...

    def published(self, key: str) -> None:
        self._num_published += 1
        _write(self._folder / f"{self._attempt}-{self._num_published}.published", key.encode())

    def say(self, text: str) -> None: ...

    def stop_requested(self) -> bool:
        return (self._folder / f"{self._attempt}.stop").exists()


def workers(folder: Path) -> list[int]:
    """Return the process ids of the running workers."""
    paths = [path for path in folder.glob("*.pid") if _is_alive(path)]
    return [int(path.read_text()) for path in paths if path.read_text()]


def _fork_workers(tasks: int, folder: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    with os.fdopen(tasks) as lines:
        for line in lines:
            attempt = line.strip()
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _work(folder, attempt)
            _write(folder / f"{attempt}.pid", str(child).encode())
    os._exit(0)


def _work(folder: Path, attempt: str) -> None:
    try:
        task: Any = pickle.loads((folder / f"{attempt}.task").read_bytes())
        channel = _FolderChannel(folder, attempt)
        try:
            outcome = run_attempt(task, channel, SequentialFanOut(), capture_prints=False)
        except Exception as error:
            outcome = Outcome(task, "failed", failure=task.failure_of(error))
        _write(folder / f"{attempt}.outcome", pickle.dumps(outcome))
    finally:
        os._exit(0)


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


def _is_alive(path: Path) -> bool:
    try:
        os.kill(int(path.read_text()), 0)
    except FileNotFoundError:
        return True  # not forked yet
    except ProcessLookupError:
        return False
    return True
