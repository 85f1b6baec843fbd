"""Control actor: passes progress from the steps to the driver, and stops from the driver to the steps.

Its calls do not show in the dashboard's list of tasks, where they would hide the steps.
"""

import functools
import time
import uuid
from typing import Any, NamedTuple

from marin_dag.ledger.progress import Progress

UPDATE_SECONDS = 0.5
MEETING_POLL_SECONDS = 0.1


class Updates(NamedTuple):
    """Reports of the steps since the driver last asked, by key."""

    started: list[str]
    progress: dict[str, Progress]
    published: list[str]
    lines: list[str]
    """Lines of all steps in order, each with the name of its step."""


class ControlActor:
    """Actor on the driver's own node, so that no other machine's death ends it."""

    def __init__(self) -> None:
        self._updates = Updates([], {}, [], [])
        self._started: set[str] = set()
        self._stopped: set[str | None] = set()
        self._returned: dict[str, set[int]] = {}

    def start(self, key: str, attempt: str) -> bool:
        """Note that an attempt starts, unless it is to stop; return whether it is to stop."""
        if self.is_stopped(attempt):
            return True
        self._started.add(attempt)
        self._updates.started.append(key)
        return False

    def report(self, key: str, progress: Progress) -> None:
        self._updates.progress[key] = progress

    def published(self, key: str) -> None:
        self._updates.published.append(key)

    def say(self, text: str) -> None:
        self._updates.lines.append(text)

    def stop(self, attempt: str | None) -> None:
        """Ask one attempt to stop, or all of them for None. Later attempts at the same step are not affected."""
        self._stopped.add(attempt)

    def withdraw(self, attempt: str) -> bool:
        """Ask one attempt to stop unless it has started; return whether it had not."""
        if attempt in self._started:
            return False
        self.stop(attempt)
        return True

    def is_stopped(self, attempt: str) -> bool:
        return None in self._stopped or attempt in self._stopped

    def take_updates(self) -> Updates:
        updates, self._updates = self._updates, Updates([], {}, [], [])
        return updates

    def has_returned(self, attempt: str, host_index: int) -> int:
        """Note that the function has returned on a host; return on how many it has."""
        hosts = self._returned.setdefault(attempt, set())
        hosts.add(host_index)
        return len(hosts)


def start_control_actor() -> tuple[Any, str]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(ControlActor)
    name = f"control-{uuid.uuid4().hex}"  # several drivers may share one namespace
    return actor.options(name=name, num_cpus=0, enable_task_events=False, scheduling_strategy=here).remote(), name


@functools.lru_cache(maxsize=1)
def control_actor(name: str) -> Any:
    """Return the handle of a control actor on a worker, which looks for it once: a handle with each task costs more."""
    import ray

    return ray.get_actor(name)


class ControlChannel:
    """Channel of a step to the control actor. Calls it at most every UPDATE_SECONDS, however often the step asks."""

    def __init__(self, attempt: str, actor: Any) -> None:
        self._attempt, self._actor = attempt, actor
        self._last_report = self._last_question = 0.0
        self._question: Any = None
        self._is_stopped = False

    def start(self, key: str) -> None:
        """Report that the step starts, and ask whether it is to stop."""
        self._last_question = time.monotonic()
        self._question = self._actor.start.remote(key, self._attempt).future()

    def report(self, key: str, progress: Progress) -> None:
        if time.monotonic() - self._last_report >= UPDATE_SECONDS or progress.done == progress.total:
            self._last_report = time.monotonic()
            self._actor.report.remote(key, progress)

    def published(self, key: str) -> None:
        self._actor.published.remote(key)

    def say(self, text: str) -> None:
        self._actor.say.remote(text)

    def stop_requested(self) -> bool:
        # Never waits: the reply takes as long as many a step, and a task in `ray.get` lends its CPUs to another task.
        if self._question is not None and self._question.done():
            self._is_stopped, self._question = self._is_stopped or bool(self._question.result()), None
        elif self._question is None and time.monotonic() - self._last_question >= UPDATE_SECONDS:
            self._last_question = time.monotonic()
            self._question = self._actor.is_stopped.remote(self._attempt).future()
        return self._is_stopped
