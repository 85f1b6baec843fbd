"""Backend: where attempts run. The driver decides what runs; a backend runs it and brings back how it ended."""

from collections.abc import Mapping
from typing import Protocol

from marin_dag.graph.resources import Resources
from marin_dag.ledger.progress import Progress
from marin_dag.run.task import Outcome, Task


class Listener(Protocol):
    """The driver, as a backend sees it."""

    def on_started(self, key: str) -> None:
        """A step has got its resources and begun."""

    def on_progress(self, key: str, progress: Progress) -> None:
        """A step says how far it is."""

    def on_published(self, key: str) -> None:
        """A step has committed a milestone."""

    def on_remark(self, text: str) -> None:
        """The machinery says something, or a step that the text names."""


class Backend(Protocol):
    """One driver's means of execution; used from the driver's main thread, except `cancel`."""

    max_running: int
    """How many tasks it is worth handing over at once."""
    max_alike: int
    """How many of them that ask for the same machines: what waits for chips keeps nothing from the cores."""

    @property
    def announcement(self) -> str:
        """What to tell the user before `start`, where that takes a while; else ""."""

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> str:
        """Gets ready for steps, by name, that ask for such resources; returns what to tell the user about it, or "".

        Raises:
            UserError: some ask for what this backend will never have; none of them is to begin then.
        """

    def submit(self, task: Task) -> None:
        """Hands a task over."""

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        """Outcomes since the last call; waits for one, no longer than the timeout (in-process: than a step takes)."""

    def request_stop(self) -> None:
        """Asks every running step to save and leave."""

    def withdraw(self, key: str) -> None:
        """Takes back one task that waits for its resources; one that has begun goes on."""

    def cancel(self, key: str) -> None:
        """Stops one task, whose work is lost to another driver; from any thread."""

    def close(self) -> None:
        """Ends whatever still runs."""
