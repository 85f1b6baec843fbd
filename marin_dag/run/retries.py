"""Retries: whether a step whose start or attempt failed is tried again, and when."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Failure, Records, first_lines
from marin_dag.ledger.work_files import progress_mark
from marin_dag.quantities import counted
from marin_dag.run.frontier import ENDED, Frontier, Node
from marin_dag.run.live import LineDisplay
from marin_dag.run.task import Outcome
from marin_dag.store.retry import is_transient, patiently
from marin_dag.store.store import Store, StoreError

ATTEMPTS_WITHOUT_PROGRESS = 3
# With the longest pause, a step fails after about ten minutes without a store.
STARTS_POSTPONED = 14
LONGEST_PAUSE_SECONDS = 60.0


class PreemptedError(Exception):
    """A step saved its work and stopped without a request of its driver: its machine was about to go."""

    is_transient = True


def preemption(outcome: Outcome) -> Failure:
    error = PreemptedError(f"stopped without a request of this driver (was its machine preempted?); {outcome.kept}")
    return outcome.task.failure_of(error)


def headline(failure: Failure) -> str:
    return f"{failure.error_type}: {failure.error.splitlines()[0] if failure.error else ''}"


@dataclasses.dataclass(eq=False)
class Retries:
    """The retries and failures of one driver."""

    store: Store
    frontier: Frontier
    display: LineDisplay
    back_off_seconds: float
    """The pause before the second attempt; it doubles."""
    failures: dict[str, Failure] = dataclasses.field(default_factory=dict)
    """Failures of the steps that will not be retried, by key."""

    def postpone(self, node: Node, error: Exception) -> bool:
        """Return whether to start a step again after a pause because the store did not answer; costs no attempt."""
        if not is_transient(error) or node.num_postponed >= STARTS_POSTPONED:
            return False
        delay = min(self.back_off_seconds * 2**node.num_postponed, LONGEST_PAUSE_SECONDS)
        node.num_postponed += 1
        node.not_before = time.monotonic() + delay
        self.display.event(node.step.name, "waiting", f"{delay:g} s for the store: {first_lines(error)}")
        return True

    def retry_or_fail(self, node: Node, failure: Failure, *, is_stopping: bool) -> None:
        """Retry a transient failure after a pause, unless the driver stops or attempts make no progress."""
        mark = self._progress_mark(node.step)
        has_moved = bool(node.progress_mark and mark) and mark != node.progress_mark
        node.num_without_progress = 1 if has_moved else node.num_without_progress + 1
        node.progress_mark = mark or node.progress_mark
        failure = failure.model_copy(update={"progress": mark})
        if failure.is_transient and node.num_without_progress < ATTEMPTS_WITHOUT_PROGRESS and not is_stopping:
            self._record(failure)
            delay = self.back_off_seconds * 2 ** (node.num_without_progress - 1)
            node.not_before = time.monotonic() + delay
            self.frontier.move(node, "waiting")
            log = self._log_of(failure, "; log: ")
            self.display.event(node.step.name, "retrying", f"in {delay:g} s after {headline(failure)}{log}")
            return
        if failure.is_transient and node.num_without_progress >= ATTEMPTS_WITHOUT_PROGRESS:
            text = f"{failure.error}\ncrash loop: {node.num_without_progress} attempts in a row made no progress"
            failure = failure.model_copy(update={"error": text})
        self.fail(node, failure)

    def fail(self, node: Node, failure: Failure) -> None:
        """Record the failure of a step that will not be retried."""
        if not failure.progress:  # it could not be started
            failure = failure.model_copy(update={"progress": self._progress_mark(node.step)})
        self.frontier.move(node, "failed")
        self.failures[node.step.key] = failure
        self.display.event(node.step.name, "failed", headline(failure))
        self._record(failure)

    def failure_lines(self, command: str, command_to_force: Callable[[str], str]) -> Iterator[str]:
        """Yield each failure, how many steps are not done, and the commands to continue; nothing if all are done."""
        nodes = {node.step.key: node for node in self.frontier.nodes}
        for key, failure in self.failures.items():
            node = nodes[key]
            attempts = f" ({node.num_attempts} attempts)" if node.num_attempts > 1 else ""
            log = self._log_of(failure, "\n  log:  ")
            yield f"\n{node.step.name} failed{attempts}: {failure.error_type}: {failure.error}{log}"
        states = [node.state for node in nodes.values()]
        count = {state: states.count(state) for state in ENDED}
        if count["done"] == len(states):
            return
        others: dict[str, int] = {state: number for state, number in count.items() if state != "done"}
        others["not run"] = len(states) - sum(count.values())
        rest = ", ".join(f"{number} {state}" for state, number in others.items() if number)
        are = "is" if len(states) == 1 else "are"
        yield f"{count['done']} of {counted(len(states), 'step')} {are} done, {rest}"
        damaged = {name for failure in self.failures.values() for name in failure.steps_to_force}
        above = Graph(nodes[key].step for key in self.failures).names if damaged else ()
        for name in above:  # inputs first
            if name in damaged:
                yield f"first:     {command_to_force(name)}"
        yield f"{'then:    ' if damaged else 'continue:'}  {command}"

    def _log_of(self, failure: Failure, prefix: str) -> str:
        with contextlib.suppress(StoreError):
            if self.store.exists(failure.log_path):  # not if the attempt never started
                return f"{prefix}{self.store.url(failure.log_path)}"
        return ""

    def _progress_mark(self, step: Step[Any]) -> str:
        """Return the progress mark of a step; "" if the store does not answer."""
        try:
            return patiently(lambda: progress_mark(self.store, step.digest, step.kind.resumes_at))
        except StoreError as error:
            self.display.say(f"{step.name}: cannot see what the attempt left to resume from: {first_lines(error)}")
            return ""

    def _record(self, failure: Failure) -> None:
        try:
            Records(self.store).record_failure(failure)
        except StoreError as error:  # a full disk is often the failure itself, which the user has seen
            self.display.complain(f"this failure could not be recorded: {error}")
