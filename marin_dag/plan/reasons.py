"""Reasons: why a step has its verdict, as typed values that render themselves for tables, JSON and `why`."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import dataclass_transform

from marin_dag.errors import listed
from marin_dag.identity.diff import CodeChanged, DeclarationChanged, Difference, FieldChanged, InputChanged
from marin_dag.ledger.lease import Held
from marin_dag.quantities import counted
from marin_dag.record_key import short_key

MAX_NAMES = 3
MAX_CHANGES = 6
"""Changes of one step that a plan lists; with more, it is hardly the same step."""


@dataclass_transform(frozen_default=True)
class Reason:
    """A reason; its text is one line of a plan, and its details are further lines for `why`.

    Subclasses are frozen dataclasses.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    template = ""
    """The line, where the fields alone make it."""

    def __str__(self) -> str:
        return self.template.format(**vars(self))

    def details(self) -> Iterator[str]:
        """Yield the further lines of `why`."""
        yield from ()


class NeverMade(Reason):
    """There is no output of this identity, and none under this name."""

    template = "never made"


class RecordGone(Reason):
    """The name lists this output, but its record is missing."""

    template = "its record is gone: deleted, or the attempt was killed before it wrote one"


class Continues(Reason):
    """An earlier milestone of the run is published, and the step continues from it."""

    milestone: int
    until: int
    template = "continues from step {milestone:,} to {until:,}"


class Resumes(Reason):
    """An attempt that was interrupted, or failed, saved its state at a milestone number."""

    milestone: int
    until: int

    def __str__(self) -> str:
        if self.milestone == self.until:
            return f"step {self.until:,} was saved by an earlier attempt; only publishing is left"
        return f"resumes at step {self.milestone:,} of {self.until:,}, saved by an earlier attempt"


class Follows(Reason):
    """This plan also makes an earlier stop of the same run, and the step continues from there."""

    step: str
    milestone: int
    template = "continues from {step} at step {milestone:,}, in the same run"


class KeptParts(Reason):
    """An attempt that was interrupted, or failed, left finished shards."""

    count: int

    def __str__(self) -> str:
        return f"reuses {counted(self.count, 'finished shard')} of an earlier attempt"


class Changed(Reason):
    """A difference from the nearest output under this name, and the steps where it was made."""

    steps: tuple[str, ...]
    difference: Difference
    is_here: bool

    def __str__(self) -> str:
        return render_difference(self.difference) if self.is_here else render_changed(self.steps, self.difference)


class Drifted(Reason):
    """The code changed under the same declared version."""

    version: str
    difference: CodeChanged

    def __str__(self) -> str:
        return f"the code changed under version {self.version}: {render_difference(self.difference)}"


class Accepted(Reason):
    """The code differs from the record's, and a user accepted that it makes the same output."""

    author: str
    because: str
    created: str
    definitions: tuple[str, ...]
    template = "other code, accepted by {author}: {because}"

    def details(self) -> Iterator[str]:
        yield from (f"  ~ {definition}" for definition in self.definitions)
        yield f"accepted {self.created}; `accept STEP --revoke` undoes it"


class Warned(Reason):
    """The step warned about its output when it made it."""

    text: str
    samples: tuple[str, ...]
    file: str
    """Path or URL of a file with more samples; "" if there is none."""
    template = "warning: {text}"

    def details(self) -> Iterator[str]:
        yield from (f"such as: {sample}" for sample in self.samples)
        if self.file:
            yield f"more in {self.file}"


class OfAttempt(Reason):
    """A reason that names the process of an attempt."""

    host: str
    pid: int
    since: str

    @property
    def where(self) -> str:
        return f"{self.host or 'another machine'} (pid {self.pid}) since {self.since}"


class Running(OfAttempt):
    """Another run holds the lease."""

    name: str = ""
    """The name of the running step, where it is another stop of the same run."""
    done: int | None = None
    """Progress at the last heartbeat; None where it reports none."""
    total: int | None = None
    unit: str = ""
    saved: int | None = None
    """The milestone number that another attempt would resume at if this one ended now."""
    parts: int = 0
    """Its finished shards."""
    is_queued: bool = False
    """Whether it was waiting for resources at the last heartbeat."""
    does: str = ""
    """See `Holder`: the lease may be held for another purpose than making the step."""

    @classmethod
    def of(cls, step: str, held: Held) -> "Running":
        """Return the reason of a step whose lease is held."""
        holder, progress = held.holder, held.progress
        name = "" if holder.does or holder.name == step else holder.name
        running = cls(holder.host, holder.pid, holder.since, name, is_queued=held.is_queued, does=holder.does)
        if progress is None:
            return running
        return dataclasses.replace(running, done=progress.done, total=progress.total, unit=progress.unit)

    def __str__(self) -> str:
        if self.does:
            return f"another process {self.does} it, on {self.where}"
        name = f"as {self.name} " if self.name else ""
        parts = [
            f"{f'waits for resources {name}in a run' if self.is_queued else f'running {name}'.rstrip()} on {self.where}"
        ]
        if self.done is not None:
            parts.append(f"at {self.done:,} of {self.total:,} {self.unit}".rstrip())
        if self.saved is not None:
            parts.append(f"saved at step {self.saved:,}")
        if self.parts:
            parts.append(f"{counted(self.parts, 'shard')} finished")
        return ", ".join(parts)


class RunsAgain(OfAttempt):
    """The step is done, and another run forces it again: its new output is compared with the recorded one."""

    def __str__(self) -> str:
        return f"runs again on {self.where}, by --force, to compare its output"


class Failed(Reason):
    """The newest attempt ended with an error."""

    attempts: int
    attempt: str
    error: str
    log_path: str

    def __str__(self) -> str:
        error = self.error.strip().partition("\n")[0] or "failed"
        return error if self.attempts == 1 else f"{self.attempts} attempts; {error}"

    def details(self) -> Iterator[str]:
        yield from self.error.strip().splitlines()[1:]
        yield f"log: {self.log_path}"


class Stopped(Reason):
    """A user stopped the step (`tell STEP stop`), and no attempt got further since."""

    author: str
    because: str
    requested: str
    """When."""
    answer: str
    """The attempt's reply."""

    def __str__(self) -> str:
        because = f": {self.because}" if self.because else ""
        return f"stopped by {self.author}{because} ({self.requested}); {self.answer}"


class Silent(Reason):
    """The lease is held elsewhere, but its last heartbeat is too old by this machine's clock."""

    host: str
    pid: int
    seconds: int
    does: str
    """See `Holder`."""

    def __str__(self) -> str:
        who = f"the process that {self.does} it" if self.does else "the attempt"
        heartbeat = f"sent its last heartbeat {self.seconds:,} s ago: it was killed, or this clock is ahead"
        return f"{who} on {self.host} (pid {self.pid}) {heartbeat}"


class BlockedBy(Reason):
    """Inputs that are missing and that this plan does not make."""

    steps: tuple[tuple[str, str], ...]
    """Name and verdict of the first steps of each blocked chain."""

    def __str__(self) -> str:
        return "needs " + listed([f"{name} ({verdict})" for name, verdict in self.steps], MAX_NAMES)

    def details(self) -> Iterator[str]:
        yield from (f"{name} is {verdict}" for name, verdict in self.steps[MAX_NAMES:])


class NotSelected(Reason):
    """The step is excluded by --only, --until or --from."""

    template = "not selected"


class SameAs(Reason):
    """Another step of the graph has the same identity and makes the output."""

    step: str
    template = "the same as {step}"


class Forced(Reason):
    """The step is done, and --force runs it again."""

    template = "forced: runs again and must give the same output"


def render_all(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return one line for each reason; changes after the first `MAX_CHANGES` are counted in one line."""
    lines, num_changes = [], 0
    for reason in reasons:
        num_changes += isinstance(reason, Changed)
        if not isinstance(reason, Changed) or num_changes <= MAX_CHANGES:
            lines.append(str(reason))
    if num_changes > MAX_CHANGES:
        lines.append(f"and {num_changes - MAX_CHANGES} more changes; `why` lists them")
    return tuple(lines)


def render_changed(steps: tuple[str, ...], difference: Difference) -> str:
    """Return one line for one difference and the steps where it was made."""
    if len(steps) == 1:
        return f"{steps[0]}: {render_difference(difference)}"
    return f"{render_difference(difference)}, in {listed(steps, MAX_NAMES)}"


def render_difference(difference: Difference) -> str:
    match difference:
        case FieldChanged():
            return f"{difference.field}: {difference.old} -> {difference.new}"
        case InputChanged():
            old, new = short_key(difference.old_key), short_key(difference.new_key)
            if difference.old_name or difference.new_name:
                old, new = f"{difference.old_name} ({old})".strip(), f"{difference.new_name} ({new})".strip()
            return f"input {difference.field}: {old} -> {new}"
        case DeclarationChanged():
            return f"{difference.what}: {difference.old} -> {difference.new}"
        case CodeChanged():
            parts = [("changed", difference.changed), ("new", difference.added), ("gone", difference.removed)]
            texts = [f"{what} {listed([_leaf(name) for name in names], MAX_NAMES)}" for what, names in parts if names]
            return "code " + ("; ".join(texts) or "changed; the record does not say where")


def _leaf(name: str) -> str:
    return ".".join(name.split(".")[-2:])
