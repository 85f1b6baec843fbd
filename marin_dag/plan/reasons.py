"""Reasons: why a step has its verdict, as typed values with one renderer."""

import dataclasses
from collections.abc import Iterable, Sequence

from marin_dag.errors import listed
from marin_dag.identity.diff import ABSENT, CodeChanged, DeclarationChanged, Difference, FieldChanged, InputChanged
from marin_dag.plan.milestone_reasons import (
    MilestoneMissing,
    MilestoneNotRequested,
    MilestoneOutsideRun,
    render_milestone_reason,
)
from marin_dag.quantities import counted

MAX_NAMES = 3
MAX_CHANGES = 6
"""Differences of one step that are worth a line each; with more it is hardly the same step any more."""


@dataclasses.dataclass(frozen=True)
class NeverMade:
    """No output of this identity, and none under this name."""


@dataclasses.dataclass(frozen=True)
class RecordGone:
    """It is noted under this name that the output was made, or about to be, and there is no record: somebody deleted
    it, or whatever made it was killed just before it wrote it."""


@dataclasses.dataclass(frozen=True)
class Continues:
    """The trajectory is there, up to an earlier step."""

    milestone: int
    until: int


@dataclasses.dataclass(frozen=True)
class Resumes:
    """An attempt that was interrupted, or failed, left its state at a step."""

    milestone: int
    until: int


@dataclasses.dataclass(frozen=True)
class Follows:
    """An earlier stop of the same trajectory is made in this plan too, and this step goes on from there."""

    step: str
    milestone: int


@dataclasses.dataclass(frozen=True)
class KeptParts:
    """An attempt that was interrupted, or failed, left finished shards."""

    count: int


@dataclasses.dataclass(frozen=True)
class Changed:
    """A difference to the newest output under this name, and the steps at which it was made."""

    steps: tuple[str, ...]
    difference: Difference
    is_here: bool


@dataclasses.dataclass(frozen=True)
class Drifted:
    """Same declared version, other code."""

    version: str
    difference: CodeChanged


@dataclasses.dataclass(frozen=True)
class Accepted:
    """Other code than that of the record, and a person said that it makes the same output."""

    author: str
    because: str
    created: str
    definitions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Running:
    """Somebody else has the lease."""

    host: str
    pid: int
    since: str
    name: str = ""
    """Of the step that runs, where it is another stop of the same trajectory."""
    done: int | None = None
    """How far it is, as of its last heartbeat; None where it has not said."""
    total: int | None = None
    unit: str = ""
    saved: int | None = None
    """The step that another attempt would go on from, were this one to end now."""
    parts: int = 0
    """Its finished shards."""
    is_queued: bool = False
    """Whether it waits for its resources, as of its last heartbeat."""
    does: str = ""
    """See `Holder`: what is done with the step other than to make it."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """The newest attempt ended with an error."""

    attempts: int
    attempt: str
    error: str
    log_path: str


@dataclasses.dataclass(frozen=True)
class Stopped:
    """A person told the step to stop (`tell STEP stop`), and it has not got further since."""

    author: str
    because: str
    told: str
    answer: str
    """What became of that."""


@dataclasses.dataclass(frozen=True)
class Silent:
    """Who holds the lease elsewhere and has not ended, and whose last heartbeat is too old by this machine's clock."""

    host: str
    pid: int
    seconds: int
    does: str = ""
    """See `Holder`: what is done with the step other than to make it."""


@dataclasses.dataclass(frozen=True)
class BlockedBy:
    """Steps that will not be there."""

    steps: tuple[tuple[str, str], ...]
    """Name and verdict, the roots of the blockage only."""


@dataclasses.dataclass(frozen=True)
class NotSelected:
    """Left out by --only, --until or --from."""


@dataclasses.dataclass(frozen=True)
class SameAs:
    """Another step of the graph has the same identity and makes the output."""

    step: str


@dataclasses.dataclass(frozen=True)
class Forced:
    """Done, and to be run again because the command says so."""


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
    | Running
    | MilestoneNotRequested
    | Failed
    | Stopped
    | Silent
    | BlockedBy
    | NotSelected
    | SameAs
    | Forced
)


def are_counted(reasons: Iterable[Reason]) -> bool:
    """Whether so much has changed that `render_all` counts the differences instead of naming each."""
    return sum(isinstance(reason, Changed) for reason in reasons) > MAX_CHANGES


def are_of_another_recipe(reasons: Iterable[Reason]) -> bool:
    """Whether so many settings of the step itself have other values; entries of its lists and mappings that came or
    went are none, for one fork more on a page of forks is an entry in seven of them."""
    here = [reason.difference for reason in reasons if isinstance(reason, Changed) and reason.is_here]
    return sum(_entry(difference) is None and not _is_in_a_list(difference) for difference in here) > MAX_CHANGES


def render_all(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Lines for the reasons of one step: one each, but for a mass of changes a count and where they are."""
    reasons = tuple(reasons)
    if not are_counted(reasons):
        return tuple(render(reason) for reason in reasons)
    changed = [reason for reason in reasons if isinstance(reason, Changed)]
    here = [reason.difference for reason in changed if reason.is_here]
    fields = dict.fromkeys(_what(difference) for difference in here)
    above = dict.fromkeys(step for reason in changed if not reason.is_here for step in reason.steps)
    entries = dict.fromkeys(entry for difference in here if (entry := _entry(difference)) is not None)
    where = []
    for what in ("new", "gone"):
        names = [name for name, became in entries if became == what]
        where += [f"{_listed(names)} {what}"] if names else []
    where += [_listed(fields)] if fields else []
    where += [f"in {_listed(above)}"] if above else []
    others = tuple(render(reason) for reason in reasons if not isinstance(reason, Changed))
    return (f"{len(changed)} differences: {'; '.join(where)}", *others)


def render(reason: Reason) -> str:
    """One line for one reason."""
    match reason:
        case NeverMade():
            return "never made"
        case RecordGone():
            return "made before, and its record is gone: deleted, or a kill came first"
        case Continues():
            return f"goes on from step {reason.milestone:,} to {reason.until:,}"
        case Resumes() if reason.milestone == reason.until:
            return f"step {reason.until:,} was saved by an earlier attempt, and is published as it is"
        case Resumes():
            return f"resumes at step {reason.milestone:,}, saved by an earlier attempt, of {reason.until:,}"
        case Follows():
            return f"goes on from {reason.step} at step {reason.milestone:,}, the same trajectory"
        case KeptParts():
            return f"of an earlier attempt {counted(reason.count, 'finished shard')} can be taken over"
        case MilestoneMissing() | MilestoneOutsideRun() | MilestoneNotRequested():
            return render_milestone_reason(reason)
        case Changed(is_here=True):
            return render_difference(reason.difference)
        case Changed():
            return render_changed(reason.steps, reason.difference)
        case Drifted():
            return f"version {reason.version!r} was declared for other code: {render_difference(reason.difference)}"
        case Accepted():
            return f"other code, accepted by {reason.author}: {reason.because}"
        case Running():
            return _running(reason)
        case Failed():
            tries = "" if reason.attempts == 1 else f"{reason.attempts} attempts; "
            # The first line says what failed; those after it say how often, where, and what to do.
            return f"{tries}{reason.error.strip().splitlines()[0] if reason.error.strip() else 'failed'}"
        case Stopped():
            because = f": {reason.because}" if reason.because else ""
            return f"{reason.author} told it to stop{because} ({reason.told}); {reason.answer}"
        case Silent():
            who = f"whoever {reason.does} it" if reason.does else "the attempt"
            heard = f"was last heard {reason.seconds:,} s ago: killed, or this clock is ahead"
            return f"{who} on {reason.host} (pid {reason.pid}) {heard}"
        case BlockedBy():
            return "needs " + _listed([f"{name} ({verdict})" for name, verdict in reason.steps])
        case NotSelected():
            return "not selected"
        case SameAs():
            return f"the same as {reason.step}"
        case Forced():
            return "forced: runs again, and must give the same output"


def _running(reason: Running) -> str:
    name = f"as {reason.name} " if reason.name else ""
    where = f"{reason.host or 'another machine'} (pid {reason.pid}) since {reason.since}"
    if reason.does:
        return f"somebody {reason.does} it, on {where}"
    said = [f"waits for its resources {name}in a run on {where}" if reason.is_queued else f"running {name}on {where}"]
    if reason.done is not None:
        said.append(f"at {reason.done:,} of {reason.total:,} {reason.unit}".rstrip())
    if reason.saved is not None:
        said.append(f"saved at step {reason.saved:,}")
    if reason.parts:
        said.append(f"{counted(reason.parts, 'shard')} finished")
    return ", ".join(said)


def render_many(steps: tuple[str, ...], differences: Sequence[Difference]) -> str:
    """One line for many differences that were made at the same steps."""
    fields = dict.fromkeys(_what(difference) for difference in differences)
    return f"{_listed(steps)}: {len(differences)} differences: {_listed(fields)}"


def render_changed(steps: tuple[str, ...], difference: Difference) -> str:
    """One line for one difference and where it was made."""
    if len(steps) == 1:
        return f"{steps[0]}: {render_difference(difference)}"
    return f"{render_difference(difference)}, in {_listed(steps)}"


def render_difference(difference: Difference) -> str:
    """One line for one difference."""
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
            said = [f"{what} {_listed([_leaf(name) for name in names])}" for what, names in parts if names]
            return "code " + ("; ".join(said) or "that could not be read")


def _what(difference: Difference) -> str:
    """The field of the step at which a difference lies, or "code" and the like."""
    match difference:
        case FieldChanged() | InputChanged():
            return difference.field.partition(".")[0]
        case DeclarationChanged():
            return difference.what
        case CodeChanged():
            return "code"


def _entry(difference: Difference) -> tuple[str, str] | None:
    """Name of the entry of a mapping that came or went, and which of the two."""
    if not isinstance(difference, FieldChanged) or "." not in difference.field:
        return None
    name = difference.field.rpartition(".")[2]
    return (name, "new") if difference.old == ABSENT else (name, "gone") if difference.new == ABSENT else None


def _is_in_a_list(difference: Difference) -> bool:
    """Whether it is of an item, which every item before it that came or went has moved."""
    field = difference.field if isinstance(difference, FieldChanged | InputChanged) else ""
    return any(part.isdigit() for part in field.split("."))


def short_key(key: str) -> str:
    """A record's key for people: eight digits, and the milestone."""
    digest, at, milestone = key.partition("@")
    return f"{digest[:8]}{at}{milestone}"


def _leaf(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _listed(names: Iterable[str]) -> str:
    return listed(list(names), MAX_NAMES)
