"""Backend: where attempts run. The driver decides what runs; a backend runs it and returns the outcomes."""

from collections.abc import Mapping
from typing import Protocol

from marin_dag.graph.resources import Resources
from marin_dag.ledger.progress import Progress
from marin_dag.run.task import Outcome, Task


class Listener(Protocol):
    """The driver, as a backend sees it."""

    def on_started(self, key: str) -> None:
        """Handle that a step has its resources and has started."""

    def on_progress(self, key: str, progress: Progress) -> None:
        """Handle the progress of a step."""

    def on_published(self, key: str) -> None:
        """Handle that a milestone is committed."""

    def on_message(self, text: str) -> None:
        """Show a message of the backend, or a warning of a step that the text names."""


class Backend(Protocol):
    """Runs the attempts of one driver; used from the driver's main thread, except `cancel`."""

    max_running: int
    """How many tasks the driver submits at once."""
    max_alike: int
    """How many tasks with the same resources it submits, so that steps waiting for chips hold up none on CPUs."""

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
        """Prepare for steps, by name, with these resources.

        Raises:
            UserError: the backend can never have some of the resources. No step starts then.
        """

    def submit(self, task: Task) -> None:
        """Submit a task."""

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        """Return the outcomes since the last call; wait for one up to the timeout. In-process it runs one step."""

    def request_stop(self) -> None:
        """Ask every running step to save and leave."""

    def withdraw(self, key: str) -> None:
        """Take back a task that waits for its resources; a step that has started continues."""

    def cancel(self, key: str) -> None:
        """Stop a task whose lease is lost; called from any thread."""

    def close(self) -> None:
        """End whatever is still running."""
