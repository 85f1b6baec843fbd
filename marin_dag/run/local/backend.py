"""LocalBackend: runs steps one after the other in the driver's own process, for a debugger."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from marin_dag.graph.resources import Resources
from marin_dag.run.attempt import run_attempt
from marin_dag.run.supply import check_one_machine
from marin_dag.run.task import Listener, Outcome, Task
from marin_dag.store.retry import SHARD_PAUSES_SECONDS, patiently


class LocalBackend:
    """See Backend. A cancelled step is asked to stop; if it does not, its commit fails."""

    max_running = max_alike = 1

    def __init__(self) -> None:
        self._queue: list[Task] = []
        self._is_stopping = False
        self._cancelled: set[str] = set()
        self._current = ""

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
        check_one_machine(wanted, None)
        # The backend is the channel of its steps, too.
        self.report, self.published, self.say = listener.report, listener.published, listener.say
        self._listener = listener

    def submit(self, task: Task) -> None:
        check_one_machine({task.name: task.resources}, None)  # a step that another driver has given up
        self._cancelled.discard(task.key)
        self._queue.append(task)

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        if not self._queue:
            time.sleep(timeout_seconds)
            return []
        task = self._queue.pop(0)
        if self._is_stopping:
            return [Outcome(task, "stopped")]
        self._listener.started(task.key)
        self._current = task.key
        try:
            outcome = run_attempt(task, self, SequentialFanOut(), capture_prints=False)
        except Exception as error:  # before the step started, or while its log was closed
            outcome = Outcome(task, "failed", failure=task.failure_of(error))
        return [outcome]

    def request_stop(self) -> None:
        self._is_stopping = True

    def stop_requested(self) -> bool:
        return self._is_stopping or self._current in self._cancelled

    def withdraw(self, key: str) -> None:
        """See Backend. Called between two steps, when no submitted task has started."""
        self.cancel(key)

    def cancel(self, key: str) -> None:
        self._cancelled.add(key)

    def close(self) -> None:
        self._queue.clear()


class SequentialFanOut:
    """Runs shards one after the other, in this process."""

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        for index, call in enumerate(calls):
            if stop_requested():
                return
            patiently(call, SHARD_PAUSES_SECONDS)
            yield index
