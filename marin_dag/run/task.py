"""Task: one attempt at one step, as it travels from the driver to whoever runs it, and what comes back."""

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
from marin_dag.ledger.records import Failure, Record
from marin_dag.values.walk import replace_references


@dataclasses.dataclass(frozen=True)
class KindReference:
    """A kind of step by the name of its module, which the worker imports.

    A function under a decorator does not pickle by name, and by value it drags the globals of its module along.
    Kinds that no import finds (of a script, of a test function) do travel by value.
    """

    module: str
    qualname: str
    by_value: StepKind[Any, Any] | None

    @classmethod
    def to(cls, kind: StepKind[Any, Any]) -> "KindReference":
        module, qualname = kind.function.__module__, kind.function.__qualname__
        if module != "__main__":
            found: Any = importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part, None)
            if found is kind:
                return cls(module, qualname, None)
        return cls(module, qualname, kind)

    def load(self) -> StepKind[Any, Any]:
        """The kind, imported where it has to be."""
        if self.by_value is not None:
            return self.by_value
        found: Any = importlib.import_module(self.module)
        for part in self.qualname.split("."):
            found = getattr(found, part)
        assert isinstance(found, StepKind)
        return found


@dataclasses.dataclass(frozen=True)
class Task:
    """`config` has its inputs bound to the records they read."""

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
    """What the scheduler gives before it kills, where whoever started the run said it."""
    wanted_milestones: tuple[int, ...] = ()
    is_forced: bool = False
    """Done already, and run again to see whether it gives the same: it compares, and commits nothing."""
    old_tellings: frozenset[str] = frozenset()
    """Ids of what steps were told before the run began."""
    known_milestones: tuple[int, ...] | None = None
    """For a gang, whose hosts must all see the same: the milestones that there were when it was started."""

    @property
    def key(self) -> str:
        """Key of the record that the attempt is to create."""
        return self.digest if self.milestone is None else f"{self.digest}@{self.milestone}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How an attempt ended. `record` is the one that now exists, whoever created it."""

    task: Task
    status: Literal["done", "stopped", "failed", "cancelled"]
    record: Record | None = None
    failure: Failure | None = None
    stopped_at: str = ""
    """How far an attempt came that was stopped and saved its state, in the words of its `StepStopped`."""
    is_told_to_stop: bool = False
    """Whether a person told this step to stop, whatever becomes of the others."""
    repaired: tuple[str, ...] = ()
    """Files of the first output that were damaged, and are replaced by those of a forced attempt."""

    @property
    def remark(self) -> str:
        """What to say of an attempt that is done, beyond that."""
        if not self.task.is_forced:
            return ""
        same = "again, with the same output"
        return f"{same}, in place of damaged files: {len(self.repaired)}" if self.repaired else same


def bound_config(config: BaseModel, records: Mapping[tuple[str, ...], Record], url: Callable[[str], str]) -> BaseModel:
    """`config` with its inputs bound to their records, which lie under the keys any of which would do; `url` says where
    a path of the store is."""

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
        )

    return replace_references(config, bound)


class Meeting(Protocol):
    """Where the hosts of one attempt wait for each other."""

    def all_returned(self) -> None:
        """Says that the function has returned here; on host 0, waits until it has everywhere."""


class Channel(Protocol):
    """What a running step and the driver tell each other."""

    def report(self, key: str, progress: Progress) -> None:
        """How far the step is."""

    def published(self, key: str) -> None:
        """A milestone was committed: what waits for it may start."""

    def remark(self, text: str) -> None:
        """A line for people, which says of which step it is."""

    def stop_requested(self) -> bool:
        """Whether to save and leave."""


class FanOut(Protocol):
    """Runs the shards of one step."""

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        """Runs each call, at most `in_flight` at once; yields the index of each as it ends.

        Raises the first error of a call that a retry did not cure, when what was in flight has ended. Once a stop is
        requested nothing new begins.
        """
