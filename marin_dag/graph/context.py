"""StepContext: what a step function knows about its execution. None of it can reach an identity."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel

from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Resources
from marin_dag.ledger.requests import Request

ItemT = TypeVar("ItemT")
MappedT = TypeVar("MappedT")


class StepStopped(Exception):  # noqa: N818 -- no error: the step was asked to stop, saved its state and stopped
    """Raised by a step function that was asked to stop and has saved its state under `work_path`.

    The text says how far it came: `at step 350 of 600`. The terminal shows its first line, the log all of it.
    """


@dataclasses.dataclass(frozen=True)
class Host:
    """The host that a function runs on, among the hosts of its step."""

    index: int = 0
    num_hosts: int = 1
    coordinator: str = ""
    """`ADDRESS:PORT` on host 0, "" for a step on one machine. The engine holds the port; the function binds it too,
    with SO_REUSEPORT or SO_REUSEADDR."""
    slice_index: int = 0
    """Index of the TPU slice: hosts are numbered slice by slice, and in a slice by the worker's number."""
    num_slices: int = 1


ALONE = Host()


class Parts(NamedTuple):
    """The existing parts of an output that is still being made."""

    parts: dict[int, Input[Any]]
    """The requested finished parts, by number."""
    whole: Input[Any] | None
    """The finished output; None while it is being made."""
    beat: str | None
    """Heartbeat of the step that makes it: as long as it changes between calls, the step is running. None if no
    process holds the lease. Never compare it with a clock: the clocks of machines differ."""


class StepContext(Protocol):
    """Second argument of a step function; the backends implement it."""

    name: str
    digest: str
    """Digest of the step, or of the run that it continues."""
    attempt: str
    lease_epoch: int
    """Grows with each holder of the step's lease; a state saved under an older epoch cannot be published."""
    output_path: str
    """Empty folder or URL of this attempt; everything written below it is the output."""
    log: logging.Logger
    resources: Resources
    host: Host
    """Host of this process. On several hosts each runs the function with the same config and folders. What host 0
    publishes and returns counts; it is committed when the function has returned on all hosts."""
    notice_seconds: float | None
    """Seconds between the scheduler's signal and its kill (`--notice`); None if unknown."""
    wanted_milestones: tuple[int, ...]
    """Milestones before the end that other steps of the graph start from or end at. The function publishes them on the
    way, and also those that an earlier attempt saved without publishing."""

    @property
    def work_path(self) -> str:
        """Folder or URL that survives kills, shared by all attempts of this identity.

        `gc` may delete it when the step is done, except what lies below `events`.
        """

    def map(
        self,
        function: Callable[[ItemT, str], MappedT],
        items: Iterable[ItemT],
        *,
        in_flight: int,
        name: str = "shards",
        on_finished: Callable[[int, MappedT], None] | None = None,
    ) -> list[MappedT]:
        """Return `function(item, path)` for each item, in the order of the items. Finished shards survive a kill.

        Args:
            function: picklable; returns a pydantic model or a JSON value. `path` is the shard's own folder,
                `{output_path}/{name}/{index:05d}`.
            items: one for each shard.
            in_flight: how many shards run at once at most.
            name: differs between several maps of one step.
            on_finished: called in the step's own process with index and result of each item whose files are there.
        """

    def progress(self, done: int, total: int, unit: str, *, begin: float = 0, **figures: float) -> None:
        """Report how far the step is. The bar runs from `begin`, where the step started, to `total`."""

    def computed_with(self, **how: str) -> None:
        """Record how the following commits are computed, such as kernels: `show` prints it. Host 0's values count."""

    def warn(self, text: str) -> None:
        """Log a warning; the terminal shows that of host 0."""

    def warn_about_output(self, text: str, *, samples: Iterable[str] = (), file: str = "") -> None:
        """Record a warning with the output that is committed next: runs, plans, `why` and `show` show it.

        Args:
            text: one line: what was noticed, by which rule, and the limit that it passes.
            samples: examples; three are kept, each as one short line.
            file: path inside the output of a file with more examples.
        """

    def publish(self, milestone: int, folder: str, result: BaseModel) -> None:
        """Commit `{output_path}/{folder}` as a milestone of this run, or as a part, for other steps to start from."""

    def parts(self, growing: Input[Any], *, after: int = 0) -> Parts:
        """Return the parts of a `growing()` input numbered above `after`, and the whole if it is finished."""

    def milestones(self) -> dict[int, Input[Any]]:
        """Return the committed milestones of this run, or the parts of this output, of all attempts."""

    def stop_requested(self) -> bool:
        """Return whether to save and stop by raising `StepStopped`."""

    def stop_reason(self) -> str:
        """Return who asked the step to stop, as text for `StepStopped`; "" if nothing did."""

    def requests(self) -> Sequence[Request]:
        """Return the requests (`tell STEP ACTION`) without a reply, oldest first, except `stop`.

        It never waits, so that a function may call it in each iteration. Only host 0 gets requests.
        """

    def reply(self, request: Request, text: str) -> None:
        """Reply that the step has done what was requested, or will do it; one line that says how."""

    def decline(self, request: Request, text: str) -> None:
        """Reply that the step will not do what was requested; one line that says why. The `tell` command exits 1."""
