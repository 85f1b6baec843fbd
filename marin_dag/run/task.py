"""Task: one attempt at one step, as the driver sends it to a backend, its outcome, and what a backend is."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from marin_dag.graph.inputs import Input
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Step, StepKind
from marin_dag.ledger.damage import DamagedInputError
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import Provenance, now
from marin_dag.ledger.records import Failure, Record, attempt_path, first_lines
from marin_dag.record_key import key_of
from marin_dag.store.redact import redact
from marin_dag.store.retry import is_transient
from marin_dag.store.store import explain_os_error, limit_met
from marin_dag.values.walk import replace_references


@dataclasses.dataclass(frozen=True)
class Task:
    """An attempt at one step. `config` has its inputs bound to the records they read."""

    prefix: str
    name: str
    kind: StepKind[Any, Any]
    digest: str
    milestone: int | None
    identity: dict[str, Any]
    config: BaseModel
    resources: Resources
    attempt: str
    lease_epoch: int
    provenance: Provenance
    notice_seconds: float | None = None
    """Seconds between the scheduler's signal and its kill; None if unknown."""
    wanted_milestones: tuple[int, ...] = ()
    is_in_background: bool = False
    is_forced: bool = False
    """Whether the step is committed already and runs again only to compare its files."""
    old_requests: frozenset[str] = frozenset()
    """Ids of the requests that were there before the driver started."""
    known_milestones: tuple[int, ...] | None = None
    """Milestones that were committed when a gang started: all its hosts must see the same ones."""

    @property
    def key(self) -> str:
        return key_of(self.digest, self.milestone)

    def failure_of(self, error: BaseException) -> Failure:
        """Return the record of this attempt if it ended with `error`."""
        folder, limit = attempt_path(self.name, self.digest, self.attempt), limit_met(error)
        return Failure(
            key=self.key,
            name=self.name,
            attempt=self.attempt,
            error_type=type(error).__qualname__,
            error=first_lines(error) if limit is None else redact(explain_os_error(limit, limit.filename or folder)),
            log_path=f"{folder}.log",
            is_transient=is_transient(error),
            finished=now(),
            steps_to_force=error.steps_to_force if isinstance(error, DamagedInputError) else (),
        )


def bound_config(config: BaseModel, records: Mapping[tuple[str, ...], Record], url: Callable[[str], str]) -> BaseModel:
    """Return `config` with its inputs bound to `records`, by the keys of each; `url` returns the URL of a path."""

    def bound(item: OutputRef[Step[Any]]) -> Input[Any]:
        record = records[item.keys]
        result = item.step.kind.result_type.model_validate(record.result)
        return Input(
            item.name,
            item.digest,
            path=f"{url(record.output_path).rstrip('/')}/{item.subpath}".rstrip("/"),
            result=result,
            milestone=item.milestone,
            subpath=item.subpath,
            is_growing=record.key != item.key,
            computed_with=record.provenance.computed_with,
            record_key=record.key,
        )

    return replace_references(config, bound)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of an attempt. `record` is the one that exists now, even if another attempt created it."""

    task: Task
    status: Literal["done", "stopped", "failed", "cancelled"]
    record: Record | None = None
    failure: Failure | None = None
    stopped_at: str = ""
    """Text of the attempt's `StepStopped`: how far it came."""
    is_requested_stop: bool = False
    """Whether a request asked this step to stop, whatever the others do."""
    repaired: tuple[str, ...] = ()
    """Damaged files of the first output that a forced attempt has replaced."""

    @property
    def detail(self) -> str:
        """Text that the display adds for an attempt that is done."""
        if not self.task.is_forced:
            return ""
        same = "again, with the same output"
        return f"{same}; damaged files replaced: {len(self.repaired)}" if self.repaired else same

    @property
    def kept(self) -> str:
        kept = "a forced step starts again from the beginning" if self.task.is_forced else "its work is kept"
        return f"{kept}: {self.stopped_at}" if self.stopped_at else kept


class Reports(Protocol):
    """Reports of running steps to their driver."""

    def report(self, key: str, progress: Progress) -> None:
        """Report how far the step is."""

    def published(self, key: str) -> None:
        """Report that a milestone is committed, so that steps that wait for it may start."""

    def say(self, text: str) -> None:
        """Show a line in the terminal; a line of a step begins with the step's name."""


class Listener(Reports, Protocol):
    """The driver, as a backend sees it."""

    def started(self, key: str) -> None:
        """Handle that a step has its resources and has started."""


class Channel(Reports, Protocol):
    """Messages between a running step and its driver."""

    def stop_requested(self) -> bool:
        """Return whether to save and stop."""


class FanOut(Protocol):
    """Runs the shards of one step."""

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        """Run each call, at most `in_flight` at once; yield the index of each as it ends.

        No call starts after `stop_requested` returns True or a call has failed for good. The first error that retries
        did not fix is raised when all calls in flight have ended.
        """


class Backend(Protocol):
    """Runs the attempts of one driver; used from the driver's main thread, except `cancel`."""

    max_running: int
    """How many tasks the driver submits at once."""
    max_alike: int
    """How many tasks with the same resources it submits, so that steps waiting for chips hold up none on CPUs."""

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
        """Prepare for steps, by name, with these resources; raise UserError if it can never have some of them."""

    def submit(self, task: Task) -> None:
        """Submit a task."""

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        """Return the outcomes since the last call; wait for one up to the timeout. In-process it runs one step."""

    def request_stop(self) -> None:
        """Ask every running step to save and stop."""

    def withdraw(self, key: str) -> None:
        """Take back a task that waits for its resources; a step that has started continues."""

    def cancel(self, key: str) -> None:
        """Stop a task whose lease is lost; called from any thread."""

    def close(self) -> None:
        """End whatever is still running."""
