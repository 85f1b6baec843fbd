"""Milestone reasons: why a milestone that a step needs is not published, with the options that publish it."""

from marin_dag.plan.reasons import OfAttempt, Reason


class MilestoneMissing(Reason):
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

    def __str__(self) -> str:
        step = f"{_input(self.field)}step {self.wanted:,} was"
        if self.is_saved:
            return f"{step} saved but not published. To publish it: {self._options(self.wanted)}"
        published = "" if self.nearest is None else f"; the nearest published step is {self.nearest:,}"
        if not self.stop:
            return f"{step} not published{published}"
        again = f"or run up to {self.wanted:,} again: {self._options(self.wanted)}"
        if self.saved is None:
            return f"{step} not published{published}. Start from {_owner(self.stop)}@{self.nearest}, {again}"
        saved = f"step {self.saved:,} was saved but not published"
        return f"{step} not published{published}; {saved}. Publish that one: {self._options(self.saved)}, {again}"

    def _options(self, at: int) -> str:
        return f"`--set {self.stop}={at} --until {_owner(self.stop)}`"


class MilestoneOutsideRun(Reason):
    """The run never reaches this step: it begins later or ends before."""

    wanted: int
    begin: int
    end: int
    field: str
    stop: str
    """STEP.FIELD that sets where the run ends."""

    is_saved = False

    def __str__(self) -> str:
        name = _owner(self.stop)
        where = f"{_input(self.field)}{name} has no step {self.wanted:,}: it"
        if self.wanted <= self.begin:
            return f"{where} begins at {self.begin:,}. Start from what {name} starts from"
        extend = f"`--set {self.stop}={self.wanted}`"
        return f"{where} ends at {self.end:,}. Start from {name}@{self.end} or an earlier step, or extend it: {extend}"


class MilestoneNotRequested(OfAttempt):
    """A running attempt will pass, or has passed, a step that it was not asked to publish when it started."""

    wanted: int
    field: str
    """The input that needs the milestone; "" for the step's own end."""
    digest: str
    step: str
    """Name of the step in the graph of the attempt's driver."""
    done: int | None
    """The attempt's progress at its last heartbeat, as a milestone number."""
    takes_requests: bool
    """Whether a running step of this kind can be asked to publish."""

    @property
    def can_request(self) -> bool:
        """Whether a request now still comes in time."""
        return self.takes_requests and not self.is_past

    @property
    def is_past(self) -> bool:
        """Whether the attempt has passed the step, as far as its heartbeats show."""
        return self.done is not None and self.done >= self.wanted

    def __str__(self) -> str:
        wanted = f"was not asked to publish step {self.wanted:,}"
        text = f"{_input(self.field)}{self.step}, running on {self.where}, {wanted}"
        if self.can_request:
            ask = f"`tell {self.step} publish --at {self.wanted}`"
            return f"{text}; the driver that needs the step asks it, or ask it now: {ask}"
        if not self.is_past:
            return f"{text} and takes no requests. Stop it before that step: the next attempt publishes the step"
        return (
            f"{text} and is past it, at {self.done:,}. Unless it saved that step, the step is lost: ask `why` when "
            "it has ended, or start from a later step"
        )


def _input(field: str) -> str:
    return f"input {field}: " if field else ""


def _owner(stop: str) -> str:
    return stop.rpartition(".")[0]
