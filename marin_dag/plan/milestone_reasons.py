"""Milestone reasons: what is wrong with a step of a trajectory that is not published; `reasons.render` says them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MilestoneMissing:
    """The trajectory is there and went past this step without keeping it."""

    wanted: int
    nearest: int | None
    """The nearest that is published."""
    field: str = ""
    """The input that wants it; "" where it is the step's own stop."""
    saved: int | None = None
    """A nearer step, or this one, that attempts have saved and not published."""
    stop: str = ""
    """The field that stops the step whose trajectory it is, as STEP.FIELD; "" as above."""

    @property
    def is_saved(self) -> bool:
        """Whether publishing what lies there is all that is to be done."""
        return self.saved == self.wanted


@dataclasses.dataclass(frozen=True)
class OutsideTrajectory:
    """An input at a step that its trajectory does not come by: it begins later, or stops before."""

    wanted: int
    begin: int
    end: int
    field: str
    stop: str
    """The field that says where it stops, as STEP.FIELD."""

    @property
    def is_saved(self) -> bool:
        """As of `MilestoneMissing`: there is nothing of it."""
        return False


@dataclasses.dataclass(frozen=True)
class NotTold:
    """An input at a step of a trajectory that an attempt is at work on, which began before anybody wanted that step."""

    wanted: int
    field: str
    """The input that wants it; "" where it is the step's own stop."""
    digest: str
    """Of the trajectory."""
    step: str
    """The name under which the attempt runs."""
    host: str
    pid: int
    since: str
    done: int | None
    """How far it is, as of its last heartbeat; None where it has not said."""
    hears: bool
    """Whether it can be told now."""

    @property
    def is_past(self) -> bool:
        """Whether it has been there, as far as is known."""
        return self.done is not None and self.done >= self.wanted

    @property
    def where(self) -> str:
        """Of the attempt."""
        return f"{self.host or 'another machine'} (pid {self.pid}) since {self.since}"


MilestoneReason = MilestoneMissing | OutsideTrajectory | NotTold


def said_of_milestone(reason: MilestoneReason) -> str:
    """One line; an input is named where it is the input of a step that wants the milestone."""
    match reason:
        case MilestoneMissing():
            said = _lost(reason)
        case OutsideTrajectory():
            said = _outside(reason)
        case NotTold():
            said = _untold(reason)
    return f"input {reason.field}: {said}" if reason.field else said


def _lost(reason: MilestoneMissing) -> str:
    if not reason.field:
        return f"step {reason.wanted:,} was not kept; the nearest is {reason.nearest:,}"
    if reason.saved is not None and reason.is_saved:
        publish = _stopped(reason, reason.saved)
        return f"step {reason.wanted:,} was saved and not published; {publish} publishes it as it is"
    again = f"{_stopped(reason, reason.wanted)} trains it again up to {reason.wanted:,}"
    lost = f"step {reason.wanted:,} was not kept; the nearest is"
    if reason.saved is None:
        start = f"{reason.stop.rpartition('.')[0]}@{reason.nearest}"
        return f"{lost} {reason.nearest:,}: start from {start} instead, or {again}"
    published = "" if reason.nearest is None else f" (the nearest published is {reason.nearest:,})"
    return (
        f"{lost} {reason.saved:,}, which was saved and not published: {_stopped(reason, reason.saved)} publishes it as "
        f"it is{published}, or {again}"
    )


def _outside(reason: OutsideTrajectory) -> str:
    name = reason.stop.rpartition(".")[0]
    if reason.wanted <= reason.begin:
        return (
            f"{name} has no step {reason.wanted:,}, for it begins at {reason.begin:,}; start from what it starts from"
        )
    return (
        f"{name} has no step {reason.wanted:,}, for it stops at {reason.end:,}; start from {name}@{reason.end} or "
        f"before, or let it go on: `--set {reason.stop}={reason.wanted}`"
    )


def _stopped(reason: MilestoneMissing, at: int) -> str:
    """The options that have the trajectory stop there."""
    return f"`--set {reason.stop}={at} --until {reason.stop.rpartition('.')[0]}`"


def _untold(reason: NotTold) -> str:
    """What becomes of the step that an attempt at work was not told of, and what a person can do."""
    untold = f"{reason.step}, running on {reason.where}, was not told to keep step {reason.wanted:,}"
    if reason.is_past:
        return (
            f"{untold} and is past it, at {reason.done:,}: unless it has saved or published that very step by itself, "
            "it is lost; ask `why` once it has ended, or start from a later one"
        )
    if not reason.hears:
        return (
            f"{untold} and goes past it: stop it before; the next run, or one that waits for it, goes on from there "
            "and keeps it"
        )
    return f"{untold}: the run that waits for it tells it, or `tell {reason.step} publish --at {reason.wanted}` does"
