"""Retries: whether a step whose start or attempt failed is tried again, and when."""

import contextlib
import time
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Failure, Records, first_lines
from marin_dag.ledger.work_files import progress_mark
from marin_dag.run.failure import failure_of
from marin_dag.run.failure_report import headline
from marin_dag.run.frontier import Frontier
from marin_dag.run.live import Display
from marin_dag.run.node import Node
from marin_dag.run.task import Outcome
from marin_dag.store.retry import is_transient, patiently
from marin_dag.store.store import Store, StoreError

ATTEMPTS_WITHOUT_PROGRESS = 3
# With the longest pause, a step fails after about ten minutes without a store.
STARTS_POSTPONED = 14
LONGEST_PAUSE_SECONDS = 60.0


class PreemptedError(Exception):
    """A step saved its work and left without a request of its driver: its machine was about to go."""

    is_transient = True


def preemption(outcome: Outcome) -> Failure:
    """Return the failure of an attempt that stopped without being asked to by its driver."""
    error = PreemptedError(f"stopped without a request of this driver (was its machine preempted?); {outcome.kept}")
    return failure_of(outcome.task, error)


class Retries:
    """The retries and failures of one driver. The pause before the second attempt, `back_off_seconds`, doubles."""

    def __init__(self, store: Store, frontier: Frontier, display: Display, *, back_off_seconds: float) -> None:
        self._store = store
        self._records = Records(store)
        self._frontier = frontier
        self._display = display
        self._back_off_seconds = back_off_seconds
        self.failures: dict[str, Failure] = {}
        """Failures of the steps that will not be retried, by key."""

    def postpone(self, node: Node, error: Exception) -> bool:
        """Return whether to start a step again after a pause because the store did not answer; costs no attempt."""
        if not is_transient(error) or node.num_postponed >= STARTS_POSTPONED:
            return False
        delay = min(self._back_off_seconds * 2**node.num_postponed, LONGEST_PAUSE_SECONDS)
        node.num_postponed += 1
        node.not_before = time.monotonic() + delay
        self._display.event(node.step.name, "waiting", f"{delay:g} s for the store: {first_lines(error)}")
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
            delay = self._back_off_seconds * 2 ** (node.num_without_progress - 1)
            node.not_before = time.monotonic() + delay
            self._frontier.move(node, "waiting")
            self._display.event(
                node.step.name, "retrying", f"in {delay:g} s after {headline(failure)}{self._log_of(failure)}"
            )
            return
        if failure.is_transient and node.num_without_progress >= ATTEMPTS_WITHOUT_PROGRESS:
            text = f"{failure.error}\ncrash loop: {node.num_without_progress} attempts in a row made no progress"
            failure = failure.model_copy(update={"error": text})
        self._fail(node, failure)

    def fail(self, node: Node, failure: Failure) -> None:
        """Record the failure of a step that could not be started."""
        self._fail(node, failure.model_copy(update={"progress": self._progress_mark(node.step)}))

    def _fail(self, node: Node, failure: Failure) -> None:
        self._frontier.move(node, "failed")
        self.failures[node.step.key] = failure
        self._display.event(node.step.name, "failed", headline(failure))
        self._record(failure)

    def _log_of(self, failure: Failure) -> str:
        with contextlib.suppress(StoreError):
            if self._store.exists(failure.log_path):  # not if the attempt never started
                return f"; log: {self._store.url(failure.log_path)}"
        return ""

    def _progress_mark(self, step: Step[Any]) -> str:
        """Return the progress mark of a step; "" if the store does not answer."""
        try:
            return patiently(lambda: progress_mark(self._store, step.digest, step.kind.resumes_at))
        except StoreError as error:
            self._display.say(f"{step.name}: cannot see what the attempt left to resume from: {first_lines(error)}")
            return ""

    def _record(self, failure: Failure) -> None:
        try:
            self._records.record_failure(failure)
        except StoreError as error:  # a full disk is often the failure itself, which the user has seen
            self._display.complain(f"this failure could not be recorded: {error}")
