"""Milestone reasons: why a milestone that a step needs is not published, with the options that publish it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MilestoneMissing:
    """The run has passed this step without publishing it."""

    wanted: int
    nearest: int | None
    """The nearest published milestone."""
    field: str = ""
    """The input that needs the milestone; "" for the step's own end."""
    saved: int | None = None
    """The nearest saved and unpublished step, if it is nearer than `nearest`."""
    stop: str = ""
    """STEP.FIELD that sets where the run ends; "" for the step's own end."""

    @property
    def is_saved(self) -> bool:
        """Whether an attempt saved exactly the wanted step, so that it only has to be published."""
        return self.saved == self.wanted


@dataclasses.dataclass(frozen=True)
class MilestoneOutsideRun:
    """The run never reaches this step: it begins later or ends before."""

    wanted: int
    begin: int
    end: int
    field: str
    stop: str
    """STEP.FIELD that sets where the run ends."""

    is_saved = False


@dataclasses.dataclass(frozen=True)
class MilestoneNotRequested:
    """A running attempt will pass, or has passed, a step that it was not asked to publish when it started."""

    wanted: int
    field: str
    """The input that needs the milestone; "" for the step's own end."""
    digest: str
    step: str
    """Name of the step in the graph of the attempt's driver."""
    host: str
    pid: int
    since: str
    done: int | None
    """The attempt's progress at its last heartbeat, as a milestone number."""
    takes_requests: bool
    """Whether a running step of this kind can be asked to publish."""

    @property
    def is_past(self) -> bool:
        """Whether the attempt has passed the step, as far as its heartbeats show."""
        return self.done is not None and self.done >= self.wanted

    @property
    def can_request(self) -> bool:
        """Whether a request now still comes in time."""
        return self.takes_requests and not self.is_past

    @property
    def where(self) -> str:
        """Host, process and start of the attempt."""
        return f"{self.host or 'another machine'} (pid {self.pid}) since {self.since}"


MilestoneReason = MilestoneMissing | MilestoneOutsideRun | MilestoneNotRequested


def render_milestone_reason(reason: MilestoneReason) -> str:
    """Return one line for a reason, beginning with the input that needs the milestone."""
    match reason:
        case MilestoneMissing():
            text = _missing(reason)
        case MilestoneOutsideRun():
            text = _outside(reason)
        case MilestoneNotRequested():
            text = _not_requested(reason)
    return f"input {reason.field}: {text}" if reason.field else text


def _missing(reason: MilestoneMissing) -> str:
    wanted, nearest = reason.wanted, reason.nearest
    if not reason.stop:
        return f"step {wanted:,} was not published; the nearest published step is {nearest:,}"
    if reason.is_saved:
        return f"step {wanted:,} was saved but not published. To publish it: {_options(reason, wanted)}"
    again = f"or run up to {wanted:,} again: {_options(reason, wanted)}"
    if reason.saved is None:
        start = f"{reason.stop.rpartition('.')[0]}@{nearest}"
        return (
            f"step {wanted:,} was not published; the nearest published step is {nearest:,}. Start from {start}, {again}"
        )
    published = "" if nearest is None else f" (the nearest published step is {nearest:,})"
    return (
        f"step {wanted:,} was not published; the nearest step, {reason.saved:,}, was saved but not published"
        f"{published}. Publish that one: {_options(reason, reason.saved)}, {again}"
    )


def _outside(reason: MilestoneOutsideRun) -> str:
    name, wanted = reason.stop.rpartition(".")[0], reason.wanted
    if wanted <= reason.begin:
        return f"{name} has no step {wanted:,}: it begins at {reason.begin:,}. Start from what {name} starts from"
    return (
        f"{name} has no step {wanted:,}: it ends at {reason.end:,}. Start from {name}@{reason.end} or an earlier step, "
        f"or extend it: `--set {reason.stop}={wanted}`"
    )


def _options(reason: MilestoneMissing, at: int) -> str:
    return f"`--set {reason.stop}={at} --until {reason.stop.rpartition('.')[0]}`"


def _not_requested(reason: MilestoneNotRequested) -> str:
    text = f"{reason.step}, running on {reason.where}, was not asked to publish step {reason.wanted:,}"
    if reason.is_past:
        return (
            f"{text} and is past it, at {reason.done:,}. Unless it saved that step, the step is lost: ask `why` when "
            "it has ended, or start from a later step"
        )
    if not reason.takes_requests:
        return f"{text} and takes no requests. Stop it before that step: the next attempt publishes the step"
    return f"{text}; the driver that needs the step asks it, or ask it now: " + (
        f"`tell {reason.step} publish --at {reason.wanted}`"
    )
