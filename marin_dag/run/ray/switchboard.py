"""Switchboard: an actor between the driver and the steps: figures one way, the wish to stop the other.

Its calls are kept out of the dashboard's list of tasks, where they would bury the steps.
"""

import time
from typing import Any, NamedTuple

from marin_dag.ledger.progress import Progress

NEWS_SECONDS = 0.5
MEETING_POLL_SECONDS = 0.1


class News(NamedTuple):
    """What steps have said since the driver last asked; all by key."""

    started: list[str]
    progress: dict[str, Progress]
    published: list[str]
    remarks: list[str]
    """Not by key: each names its step."""


class Switchboard:
    """Lives on the driver's own node: no other machine's death takes it away."""

    def __init__(self) -> None:
        self._news = News([], {}, [], [])
        self._begun: set[str] = set()
        self._stopped: set[str | None] = set()
        self._coordinators: dict[str, str] = {}
        self._returned: dict[str, set[int]] = {}

    def begin(self, key: str, attempt: str) -> bool:
        """Takes the key of a step that begins, unless its attempt is to stop; answers whether it is."""
        if self.is_stopped(attempt):
            return True
        self._begun.add(attempt)
        self._news.started.append(key)
        return False

    def report(self, key: str, progress: Progress) -> None:
        """Takes a figure."""
        self._news.progress[key] = progress

    def published(self, key: str) -> None:
        """Takes the key of a milestone."""
        self._news.published.append(key)

    def remark(self, text: str) -> None:
        """Takes a line for people."""
        self._news.remarks.append(text)

    def stop(self, attempt: str | None) -> None:
        """Asks one attempt to stop, or all of them; not its step, which may be tried again."""
        self._stopped.add(attempt)

    def withdraw(self, attempt: str) -> bool:
        """Asks one attempt to stop unless it has begun; answers whether it had not."""
        if attempt in self._begun:
            return False
        self.stop(attempt)
        return True

    def is_stopped(self, attempt: str) -> bool:
        """Whether that attempt is to stop."""
        return None in self._stopped or attempt in self._stopped

    def take_news(self) -> News:
        """What came in since the last call."""
        news, self._news = self._news, News([], {}, [], [])
        return news

    def announce(self, attempt: str, coordinator: str) -> None:
        """Takes the address at which host 0 of an attempt awaits the others."""
        self._coordinators[attempt] = coordinator

    def coordinator(self, attempt: str) -> str | None:
        """That address; None as long as host 0 has not begun."""
        return self._coordinators.get(attempt)

    def has_returned(self, attempt: str, host_index: int) -> int:
        """Takes that a host's function has returned; answers how many have."""
        hosts = self._returned.setdefault(attempt, set())
        hosts.add(host_index)
        return len(hosts)


def start_switchboard() -> Any:
    """A handle to a new one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(Switchboard)
    return actor.options(num_cpus=0, enable_task_events=False, scheduling_strategy=here).remote()


class SwitchboardChannel:
    """A step's end of the switchboard; asks and tells at most every NEWS_SECONDS, since a step may do so each batch."""

    def __init__(self, attempt: str, switchboard: Any) -> None:
        self._attempt = attempt
        self._switchboard = switchboard
        self._last_report = 0.0
        self._last_question = 0.0
        self._question: Any = None
        self._is_stopped = False

    def begin(self, key: str) -> None:
        """Says that the step begins. Whether it is to stop is asked with it, and the answer awaited where it counts."""
        self._last_question = time.monotonic()
        self._question = self._switchboard.begin.remote(key, self._attempt).future()

    def report(self, key: str, progress: Progress) -> None:
        """See Channel."""
        if time.monotonic() - self._last_report >= NEWS_SECONDS or progress.done == progress.total:
            self._last_report = time.monotonic()
            self._switchboard.report.remote(key, progress)

    def published(self, key: str) -> None:
        """See Channel."""
        self._switchboard.published.remote(key)

    def remark(self, text: str) -> None:
        """See Channel."""
        self._switchboard.remark.remote(text)

    def stop_requested(self) -> bool:
        """See Channel."""
        if self._is_stopped:
            return True
        if self._question is None and time.monotonic() - self._last_question >= NEWS_SECONDS:
            self._last_question = time.monotonic()
            self._question = self._switchboard.is_stopped.remote(self._attempt).future()
        if self._question is not None:
            # By its future: a task that waits in `ray.get` lends its cores to another task meanwhile.
            self._is_stopped, self._question = bool(self._question.result()), None
        return self._is_stopped
