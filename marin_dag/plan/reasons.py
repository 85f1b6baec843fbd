"""Reasons: why a step has its verdict, as typed values with one renderer."""

import dataclasses
from collections.abc import Iterable

from marin_dag.errors import listed
from marin_dag.identity.diff import CodeChanged, DeclarationChanged, Difference, FieldChanged, InputChanged
from marin_dag.ledger.lease import Held
from marin_dag.plan.milestone_reasons import (
    MilestoneMissing,
    MilestoneNotRequested,
    MilestoneOutsideRun,
    render_milestone_reason,
)
from marin_dag.quantities import counted

MAX_NAMES = 3
MAX_CHANGES = 6
"""Changes of one step that a plan lists; with more, it is hardly the same step."""


@dataclasses.dataclass(frozen=True)
class NeverMade:
    """There is no output of this identity, and none under this name."""


@dataclasses.dataclass(frozen=True)
class RecordGone:
    """The name lists this output, but its record is missing: deleted, or the attempt was killed before it wrote it."""


@dataclasses.dataclass(frozen=True)
class Continues:
    """An earlier milestone of the run is published, and the step continues from it."""

    milestone: int
    until: int


@dataclasses.dataclass(frozen=True)
class Resumes:
    """An attempt that was interrupted, or failed, saved its state at a milestone number."""

    milestone: int
    until: int


@dataclasses.dataclass(frozen=True)
class Follows:
    """This plan also makes an earlier stop of the same run, and the step continues from there."""

    step: str
    milestone: int


@dataclasses.dataclass(frozen=True)
class KeptParts:
    """An attempt that was interrupted, or failed, left finished shards."""

    count: int


@dataclasses.dataclass(frozen=True)
class Changed:
    """A difference from the nearest output under this name, and the steps where it was made."""

    steps: tuple[str, ...]
    difference: Difference
    is_here: bool


@dataclasses.dataclass(frozen=True)
class Drifted:
    """The code changed under the same declared version."""

    version: str
    difference: CodeChanged


@dataclasses.dataclass(frozen=True)
class Accepted:
    """The code differs from the record's, and a user accepted that it makes the same output."""

    author: str
    because: str
    created: str
    definitions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Warned:
    """The step warned about its output when it made it."""

    text: str
    samples: tuple[str, ...]
    file: str
    """Path or URL of a file with more samples; "" if there is none."""


@dataclasses.dataclass(frozen=True)
class Running:
    """Another run holds the lease."""

    host: str
    pid: int
    since: str
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


@dataclasses.dataclass(frozen=True)
class RunsAgain:
    """The step is done, and another run forces it again: its new output is compared with the recorded one."""

    host: str
    pid: int
    since: str


@dataclasses.dataclass(frozen=True)
class Failed:
    """The newest attempt ended with an error."""

    attempts: int
    attempt: str
    error: str
    log_path: str


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A user stopped the step (`tell STEP stop`), and no attempt got further since."""

    author: str
    because: str
    requested: str
    """When."""
    answer: str
    """The attempt's reply."""


@dataclasses.dataclass(frozen=True)
class Silent:
    """The lease is held elsewhere, but its last heartbeat is too old by this machine's clock."""

    host: str
    pid: int
    seconds: int
    does: str = ""
    """See `Holder`."""


@dataclasses.dataclass(frozen=True)
class BlockedBy:
    """Inputs that are missing and that this plan does not make."""

    steps: tuple[tuple[str, str], ...]
    """Name and verdict of the first steps of each blocked chain."""


@dataclasses.dataclass(frozen=True)
class NotSelected:
    """The step is excluded by --only, --until or --from."""


@dataclasses.dataclass(frozen=True)
class SameAs:
    """Another step of the graph has the same identity and makes the output."""

    step: str


@dataclasses.dataclass(frozen=True)
class Forced:
    """The step is done, and --force runs it again."""


Reason = (
    NeverMade
    | RecordGone
    | Continues
    | Resumes
    | Follows
    | KeptParts
    | MilestoneMissing
    | MilestoneOutsideRun
    | Changed
    | Drifted
    | Accepted
    | Warned
    | Running
    | RunsAgain
    | MilestoneNotRequested
    | Failed
    | Stopped
    | Silent
    | BlockedBy
    | NotSelected
    | SameAs
    | Forced
)


def render_all(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return one line for each reason; changes after the first `MAX_CHANGES` are counted in one line."""
    lines, num_changes = [], 0
    for reason in reasons:
        num_changes += isinstance(reason, Changed)
        if not isinstance(reason, Changed) or num_changes <= MAX_CHANGES:
            lines.append(render(reason))
    if num_changes > MAX_CHANGES:
        lines.append(f"and {num_changes - MAX_CHANGES} more changes; `why` lists them")
    return tuple(lines)


def render(reason: Reason) -> str:
    """Return one line for one reason."""
    match reason:
        case NeverMade():
            return "never made"
        case RecordGone():
            return "its record is gone: deleted, or the attempt was killed before it wrote one"
        case Continues():
            return f"continues from step {reason.milestone:,} to {reason.until:,}"
        case Resumes() if reason.milestone == reason.until:
            return f"step {reason.until:,} was saved by an earlier attempt; only publishing is left"
        case Resumes():
            return f"resumes at step {reason.milestone:,} of {reason.until:,}, saved by an earlier attempt"
        case Follows():
            return f"continues from {reason.step} at step {reason.milestone:,}, in the same run"
        case KeptParts():
            return f"reuses {counted(reason.count, 'finished shard')} of an earlier attempt"
        case MilestoneMissing() | MilestoneOutsideRun() | MilestoneNotRequested():
            return render_milestone_reason(reason)
        case Changed(is_here=True):
            return render_difference(reason.difference)
        case Changed():
            return render_changed(reason.steps, reason.difference)
        case Drifted():
            return f"the code changed under version {reason.version}: {render_difference(reason.difference)}"
        case Accepted():
            return f"other code, accepted by {reason.author}: {reason.because}"
        case Warned():
            return f"warning: {reason.text}"
        case Running():
            return _running(reason)
        case RunsAgain():
            where = f"{reason.host or 'another machine'} (pid {reason.pid}) since {reason.since}"
            return f"runs again on {where}, by --force, to compare its output"
        case Failed():
            # The first line names the failure; the later ones say how often, where, and what to do.
            error = reason.error.strip().splitlines()[0] if reason.error.strip() else "failed"
            return error if reason.attempts == 1 else f"{reason.attempts} attempts; {error}"
        case Stopped():
            because = f": {reason.because}" if reason.because else ""
            return f"stopped by {reason.author}{because} ({reason.requested}); {reason.answer}"
        case Silent():
            who = f"the process that {reason.does} it" if reason.does else "the attempt"
            heartbeat = f"sent its last heartbeat {reason.seconds:,} s ago: it was killed, or this clock is ahead"
            return f"{who} on {reason.host} (pid {reason.pid}) {heartbeat}"
        case BlockedBy():
            return "needs " + _listed([f"{name} ({verdict})" for name, verdict in reason.steps])
        case NotSelected():
            return "not selected"
        case SameAs():
            return f"the same as {reason.step}"
        case Forced():
            return "forced: runs again and must give the same output"


def _running(reason: Running) -> str:
    name = f"as {reason.name} " if reason.name else ""
    where = f"{reason.host or 'another machine'} (pid {reason.pid}) since {reason.since}"
    if reason.does:
        return f"another process {reason.does} it, on {where}"
    parts = [f"waits for resources {name}in a run on {where}" if reason.is_queued else f"running {name}on {where}"]
    if reason.done is not None:
        parts.append(f"at {reason.done:,} of {reason.total:,} {reason.unit}".rstrip())
    if reason.saved is not None:
        parts.append(f"saved at step {reason.saved:,}")
    if reason.parts:
        parts.append(f"{counted(reason.parts, 'shard')} finished")
    return ", ".join(parts)


def render_changed(steps: tuple[str, ...], difference: Difference) -> str:
    """Return one line for one difference and the steps where it was made."""
    if len(steps) == 1:
        return f"{steps[0]}: {render_difference(difference)}"
    return f"{render_difference(difference)}, in {_listed(steps)}"


def render_difference(difference: Difference) -> str:
    """Return one line for one difference."""
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
            texts = [f"{what} {_listed([_leaf(name) for name in names])}" for what, names in parts if names]
            return "code " + ("; ".join(texts) or "changed; the record does not say where")


def short_key(key: str) -> str:
    """Return a record key with eight digits of the digest, and the milestone."""
    digest, at, milestone = key.partition("@")
    return f"{digest[:8]}{at}{milestone}"


def _leaf(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _listed(names: Iterable[str]) -> str:
    return listed(list(names), MAX_NAMES)
