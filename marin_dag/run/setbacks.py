"""Setbacks: what becomes of a step of a run that could not start or whose attempt failed: another try, or the end."""

import contextlib
import time
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.progress_mark import progress_mark
from marin_dag.ledger.records import Failure, Records, first_lines
from marin_dag.run.frontier import Frontier
from marin_dag.run.live import Display
from marin_dag.run.node import Node
from marin_dag.run.obituary import headline
from marin_dag.store.retry import is_transient, patiently
from marin_dag.store.store import Store, StoreError

ATTEMPTS_WITHOUT_PROGRESS = 3
# With the longest pause, about ten minutes without a store before a step is given up.
STARTS_POSTPONED = 14
LONGEST_PAUSE_SECONDS = 60.0


class Setbacks:
    """Those of one run.

    Args:
        back_off_seconds: the wait before the second attempt; it doubles.
    """

    def __init__(self, store: Store, frontier: Frontier, display: Display, *, back_off_seconds: float) -> None:
        self._store = store
        self._records = Records(store)
        self._frontier = frontier
        self._display = display
        self._back_off_seconds = back_off_seconds
        self.failures: dict[str, Failure] = {}
        """Of the steps that failed for good, by key."""

    def is_postponed(self, node: Node, error: Exception) -> bool:
        """Whether a start that failed is to be tried again: the store did not answer, and nothing of the step was lost,
        so that it costs no attempt."""
        if not is_transient(error) or node.num_postponed >= STARTS_POSTPONED:
            return False
        delay = min(self._back_off_seconds * 2**node.num_postponed, LONGEST_PAUSE_SECONDS)
        node.num_postponed += 1
        node.not_before = time.monotonic() + delay
        self._display.event(node.step.name, "waiting", f"{delay:g} s for the store: {first_lines(error)}")
        return True

    def retry_or_fail(self, node: Node, failure: Failure, *, is_stopping: bool) -> None:
        """Tries again after a pause what may pass, unless the run is to stop or the attempts before got no further."""
        mark = self._progress_mark(node.step)
        moved = bool(node.progress_mark and mark) and mark != node.progress_mark
        node.num_without_progress = 1 if moved else node.num_without_progress + 1
        node.progress_mark = mark or node.progress_mark
        failure = failure.model_copy(update={"progress": mark})
        if failure.is_transient and node.num_without_progress < ATTEMPTS_WITHOUT_PROGRESS and not is_stopping:
            self._keep(failure)
            delay = self._back_off_seconds * 2 ** (node.num_without_progress - 1)
            node.not_before = time.monotonic() + delay
            self._frontier.move(node, "waiting")
            self._display.event(
                node.step.name, "retrying", f"in {delay:g} s after {headline(failure)}{self._log_of(failure)}"
            )
            return
        if failure.is_transient and node.num_without_progress >= ATTEMPTS_WITHOUT_PROGRESS:
            text = f"{failure.error}\ncrash loop: {node.num_without_progress} attempts in a row got no further"
            failure = failure.model_copy(update={"error": text})
        self._fail(node, failure)

    def _log_of(self, failure: Failure) -> str:
        with contextlib.suppress(StoreError):
            if self._store.exists(failure.log_path):  # not if the attempt never began
                return f"; log: {self._store.url(failure.log_path)}"
        return ""

    def fail(self, node: Node, failure: Failure) -> None:
        """Gives a step up that never began."""
        self._fail(node, failure.model_copy(update={"progress": self._progress_mark(node.step)}))

    def _fail(self, node: Node, failure: Failure) -> None:
        self._frontier.move(node, "failed")
        self.failures[node.step.key] = failure
        self._display.event(node.step.name, "failed", headline(failure))
        self._keep(failure)

    def _progress_mark(self, step: Step[Any]) -> str:
        """See `progress_mark`; "" if the store is silent."""
        try:
            return patiently(lambda: progress_mark(self._store, step.digest, step.kind.resumes_at))
        except StoreError as error:
            self._display.say(f"{step.name}: what it left to resume from cannot be seen: {first_lines(error)}")
            return ""

    def _keep(self, failure: Failure) -> None:
        try:
            self._records.record_failure(failure)
        except StoreError as error:  # a full disk is often the failure itself; the user has the message already
            self._display.complain(f"this failure could not be recorded: {error}")
