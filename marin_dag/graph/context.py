"""StepContext: all that a step function is told about its execution. Nothing of it can reach an identity."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel

from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Resources
from marin_dag.ledger.requests import Telling

ItemT = TypeVar("ItemT")
MappedT = TypeVar("MappedT")


class StepStopped(Exception):  # noqa: N818 -- not an error: the step saved its state and left, because it was asked to
    """Raised by a step function that was asked to stop and has saved its state under `work_path`.

    Its text is how far it came, for the terminal: `at step 350 of 600`. Of several lines the first is shown, and of a
    long one the beginning; the log of the attempt has it whole.
    """


@dataclasses.dataclass(frozen=True)
class Host:
    """Which of the step's hosts a function runs on; a step that asks for one machine runs on host 0 of 1."""

    index: int = 0
    num_hosts: int = 1
    coordinator: str = ""
    """`ADDRESS:PORT` on host 0, held for the function, which listens there with SO_REUSEPORT or SO_REUSEADDR, as JAX
    and torch do; "" for a step that asks for one machine."""
    slice_index: int = 0
    """Of TPU slices: hosts are numbered slice by slice, and in a slice by the worker's number."""
    num_slices: int = 1


ALONE = Host()


class Parts(NamedTuple):
    """What there is by now of an output that is being made."""

    parts: dict[int, Input[Any]]
    """By number, of those that were asked for."""
    whole: Input[Any] | None
    """The finished output; None while it is being made."""
    beat: str | None
    """Of whoever holds the lease of the step that makes it: while it moves from one call to the next, somebody is at
    work. None where nobody holds it. Never compared with a clock of this machine, which may be wrong."""


class StepContext(Protocol):
    """Second argument of a step function; the backends implement it."""

    name: str
    """Label of the step."""
    digest: str
    """Identity of the step (of the trajectory, for training)."""
    attempt: str
    lease_epoch: int
    """Grows with each holder of this step's lease; a checkpoint written under an older one cannot publish."""
    output_path: str
    """Empty folder or URL of this attempt; everything written below it is the output."""
    log: logging.Logger
    resources: Resources
    host: Host
    """On several hosts each runs the whole function with the same config and the same folders. What is published and
    returned counts on host 0; it is committed when the function has returned on all of them."""
    notice_seconds: float | None
    """What the scheduler gives between its wish that a step stop and its kill; None where nobody said (`--notice`)."""
    wanted_milestones: tuple[int, ...]
    """Milestones of this trajectory, short of its end, that other steps of the graph start from or stop at: to be
    published on the way, also one that an earlier attempt has saved and not published."""

    @property
    def work_path(self) -> str:
        """Folder or URL that survives kills; shared by all attempts of this identity.

        When the step is done it may be collected, but for what lies below `events`, which stays as long as the output.
        """
        ...

    def map(
        self,
        function: Callable[[ItemT, str], MappedT],
        items: Iterable[ItemT],
        *,
        in_flight: int,
        name: str = "shards",
        on_finished: Callable[[int, MappedT], None] | None = None,
        on_counted: Callable[[int, int], None] | None = None,
    ) -> list[MappedT]:
        """`function(item, path)` for each item, at most `in_flight` at once; results in order of the items.

        `path` is the shard's own folder, `{output_path}/{name}/{index:05d}`. Finished shards survive a kill.
        A step that maps twice gives each its own `name`.
        `function` must be picklable, and return a pydantic model or a JSON value. `on_finished` is told, here in the
        step's own process, the index and the result of each item once its files are in the output, as they end.
        `on_counted` is told before that how many have ended, of how many; first of all how many an earlier attempt had
        finished. Without it the live table is told.
        """
        ...

    def progress(self, done: int, total: int, unit: str, *, begin: float = 0, **figures: float) -> None:
        """Tell the live table how far the step is; its bar goes from `begin`, where the step began, to `total`."""
        ...

    def computed_with(self, **how: str) -> None:
        """Record beside what is committed from now on how it was computed, as kernels and their block sizes.

        Equal outputs may be computed in several ways, so this is no part of the result: a run by others is compared
        with the first by that. What host 0 tells counts; `show` prints it.
        """
        ...

    def remark(self, text: str) -> None:
        """A line for people: a warning in the log, and of host 0 said by the terminal of the run."""
        ...

    def publish(self, milestone: int, folder: str, result: BaseModel) -> None:
        """Commit `{output_path}/{folder}` as a milestone of this trajectory, or as a part, for others to start from."""
        ...

    def parts(self, growing: Input[Any], *, after: int = 0) -> Parts:
        """What there is by now of an input that was `growing()`: the parts numbered above `after`, and the whole."""
        ...

    def milestones(self) -> dict[int, Input[Any]]:
        """Committed milestones of this trajectory, or parts of this output, by whatever attempt."""
        ...

    def stop_requested(self) -> bool:
        """Whether to save and leave by raising `StepStopped`."""
        ...

    def stop_reason(self) -> str:
        """Who asked it to, as the text of `StepStopped` may say it; "" while nobody has."""
        ...

    def told(self) -> Sequence[Telling]:
        """What people have told this step beside to stop (`tell STEP WORD`), of the words that its kind declares, and
        it has not answered; the oldest first. Asks nobody, so that it may be asked at each update; host 0 hears."""
        ...

    def answer(self, telling: Telling, said: str) -> None:
        """Tells whoever told it that it is done, or will be: one line that says how."""
        ...

    def refuse(self, telling: Telling, said: str) -> None:
        """Tells whoever told it that it will not be: one line that says why. Their command ends with 1."""
        ...
