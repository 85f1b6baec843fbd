"""Task: one attempt at one step, as the driver sends it to a backend, and its outcome."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from marin_dag.graph.inputs import Input
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Step, StepKind
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Failure, Record, new_attempt
from marin_dag.store.store import Store
from marin_dag.values.walk import replace_references

Keys = tuple[str, ...]
"""Keys of records, any one of which an input can start from; the best first."""


@dataclasses.dataclass(frozen=True)
class KindReference:
    """A kind of step by the name of its module, which the worker imports.

    A decorated function does not pickle by name, and by value it takes the globals of its module along. Only kinds
    that no import finds (in a script, in a test function) travel by value.
    """

    module: str
    qualname: str
    by_value: StepKind[Any, Any] | None

    @classmethod
    def to(cls, kind: StepKind[Any, Any]) -> "KindReference":
        module, qualname = kind.function.__module__, kind.function.__qualname__
        if module != "__main__":
            found: Any = importlib.import_module(module)
            for name in qualname.split("."):
                found = getattr(found, name, None)
            if found is kind:
                return cls(module, qualname, None)
        return cls(module, qualname, kind)

    def load(self) -> StepKind[Any, Any]:
        """Return the kind; import its module if necessary."""
        if self.by_value is not None:
            return self.by_value
        found: Any = importlib.import_module(self.module)
        for name in self.qualname.split("."):
            found = getattr(found, name)
        assert isinstance(found, StepKind)
        return found


@dataclasses.dataclass(frozen=True)
class Task:
    """An attempt at one step. `config` has its inputs bound to the records they read."""

    prefix: str
    name: str
    kind: KindReference
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
    is_forced: bool = False
    """Whether the step is committed already and runs again only to compare its files."""
    old_requests: frozenset[str] = frozenset()
    """Ids of the requests that were there before the driver started."""
    known_milestones: tuple[int, ...] | None = None
    """Milestones that were committed when a gang started: all its hosts must see the same ones."""

    @property
    def key(self) -> str:
        """Key of the record that the attempt creates."""
        return self.digest if self.milestone is None else f"{self.digest}@{self.milestone}"


def new_task(
    step: Step[Any],
    store: Store,
    epoch: int,
    records: Mapping[Keys, Record] | None,
    provenance: Provenance,
    *,
    wanted_milestones: tuple[int, ...],
    notice_seconds: float | None = None,
    old_requests: frozenset[str] = frozenset(),
    is_forced: bool = False,
) -> Task:
    """Return a new attempt at `step`, with its inputs bound to `records` unless that is None."""
    return Task(
        prefix=store.prefix,
        name=step.name,
        kind=KindReference.to(step.kind),
        digest=step.digest,
        milestone=step.until,
        identity=step.identity,
        config=step.config if records is None else bound_config(step.config, records, store.url),
        resources=step.resources,
        attempt=new_attempt(),
        lease_epoch=epoch,
        provenance=provenance,
        notice_seconds=notice_seconds,
        wanted_milestones=wanted_milestones,
        old_requests=old_requests,
        is_forced=is_forced,
    )


def bound_config(config: BaseModel, records: Mapping[Keys, Record], url: Callable[[str], str]) -> BaseModel:
    """Return `config` with its inputs bound to `records`; `url` returns the URL of a path in the store."""

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
    """How an attempt ended. `record` is the one that exists now, even if another attempt created it."""

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
        """Text about the work of an attempt that stopped."""
        kept = "a forced step starts again from the beginning" if self.task.is_forced else "its work is kept"
        return f"{kept}: {self.stopped_at}" if self.stopped_at else kept


class Meeting(Protocol):
    """Meeting point of the hosts of one attempt."""

    def all_returned(self) -> None:
        """Note that the function has returned on this host; on host 0, wait until it has on all."""


class Channel(Protocol):
    """Messages between a running step and its driver."""

    def report(self, key: str, progress: Progress) -> None:
        """Report how far the step is."""

    def published(self, key: str) -> None:
        """Report that a milestone is committed, so that steps that wait for it may start."""

    def warn(self, text: str) -> None:
        """Show a line, which names its step, in the terminal."""

    def stop_requested(self) -> bool:
        """Return whether to save and leave."""


class FanOut(Protocol):
    """Runs the shards of one step."""

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        """Run each call, at most `in_flight` at once; yield the index of each as it ends.

        No call starts after `stop_requested` returns True or a call has failed for good.

        Raises:
            The first error of a call that retries did not fix, when all calls in flight have ended.
        """
