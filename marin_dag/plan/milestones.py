"""Milestones that a run must publish for other steps, and milestones that no attempt will publish, with the reason.

A run publishes the milestones that the whole graph needs, not only the selected part of the graph. A run that has
passed a step never returns to the step, and another driver may start from there.
"""

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from marin_dag.graph.graph import Graph
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import LEASES, Held, Holder
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH, Requests
from marin_dag.plan.reasons import OfAttempt, Reason
from marin_dag.record_key import digest_of, key_of, milestone_of
from marin_dag.store.store import Store

WantedMilestones = Mapping[str, frozenset[int]]
"""Milestones by the digest of the run, which several steps may share."""


class MilestoneMissing(Reason):
    """A needed milestone that the run has passed without publishing it."""

    wanted: int
    nearest: int | None
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
    """A needed milestone that the run never reaches: the run begins later or ends before."""

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
    """A needed milestone that a running attempt was not asked to publish when it started."""

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
        """Whether a request would still come in time."""
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
            return f"{text}; the driver that needs the step requests it, or request it now: {ask}"
        if not self.is_past:
            return f"{text} and takes no requests. Stop it before that step: the next attempt publishes the step"
        return (
            f"{text} and is already at {self.done:,}. The step is lost unless the attempt saved it: run `why` when the "
            "attempt has ended, or start from a later step"
        )


Lost = MilestoneMissing | MilestoneOutsideRun


def wanted_milestones(steps: Iterable[Step[Any]]) -> WantedMilestones:
    wanted: dict[str, set[int]] = defaultdict(set)
    for step in steps:
        if step.until is not None:
            wanted[step.digest].add(step.until)
        for _, item in step.inputs:
            if item.milestone is not None:
                wanted[item.digest].add(item.milestone)
    return {digest: frozenset(milestones) for digest, milestones in wanted.items()}


def still_wanted(
    wanted: WantedMilestones, step: Step[Any], committed: Collection[str], *, requested: frozenset[int]
) -> tuple[int, ...]:
    """Return the wanted or requested milestones before the end of `step` that are not committed yet."""
    end = step.until or 0
    milestones = sorted(wanted.get(step.digest, frozenset()) | requested)
    return tuple(at for at in milestones if at < end and key_of(step.digest, at) not in committed)


def earlier_milestones(step: Step[Any], committed: Collection[str]) -> tuple[int, ...]:
    """Return the committed milestones between the start and the end of `step`, in order."""
    if step.until is None:
        return ()
    start = max((item.milestone or 0 for _, item in step.inputs if item.digest == step.digest), default=0)
    return tuple(at for at in kept_milestones(committed).get(step.digest, ()) if start < at < step.until)


def kept_milestones(committed: Iterable[str]) -> Mapping[str, list[int]]:
    """Return the committed milestones of each run by its digest, in order."""
    kept: dict[str, list[int]] = {}
    for key in committed:
        milestone = milestone_of(key)
        if milestone is not None:
            kept.setdefault(digest_of(key), []).append(milestone)
    return {digest: sorted(milestones) for digest, milestones in kept.items()}


def not_requested(
    holder: Holder, step: Step[Any], milestones: Iterable[int], *, field: str = "", progress: Progress | None = None
) -> list[MilestoneNotRequested]:
    """Return the uncommitted `milestones` of the run of `step` that its attempt passes without publishing them.

    `field` is the input that needs them, "" for the step's own end.
    """
    asked = holder.milestones or ()
    return [
        MilestoneNotRequested(
            wanted=milestone,
            field=field,
            digest=step.digest,
            step=holder.name,
            host=holder.host,
            pid=holder.pid,
            since=holder.since,
            done=progress.done if progress is not None and progress.unit == "steps" else None,
            takes_requests=PUBLISH in step.kind.requests,
        )
        for milestone in milestones
        if milestone not in asked and any(milestone < later for later in asked)
    ]


def end_not_requested(
    step: Step[Any], running: Mapping[str, Held], committed: Collection[str]
) -> list[MilestoneNotRequested]:
    """Return the end of `step`, if a running attempt passes it without publishing it."""
    held = running.get(step.digest)
    if held is None or step.until is None or step.key in committed:
        return []
    return not_requested(held.holder, step, [step.until], progress=held.progress)


class LeftBehind:
    """Files of interrupted attempts, from which the next attempt resumes; only digests with a lease have any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, list[str]] = {}

    def of(self, digest: str) -> list[str]:
        if digest not in self._attempted:
            return []
        if digest not in self._files:
            listed = self._store.list("work", f"{digest}/")
            self._files[digest] = [entry.path.removeprefix(f"work/{digest}/") for entry in listed]
        return self._files[digest]

    @functools.cached_property
    def _attempted(self) -> frozenset[str]:
        return frozenset(entry.path.split("/")[1] for entry in self._store.list(LEASES))


class LostMilestones:
    """Milestones that the inputs of a graph's steps need and that no attempt will publish.

    A run that has yet to reach a wanted step publishes it, because each driver asks its attempts for what the graph
    needs. A run that has passed the step never returns to it.
    """

    def __init__(self, graph: Graph, store: Store, committed: frozenset[str] | None = None) -> None:
        self._graph, self.left_behind = graph, LeftBehind(store)
        self._committed = Records(store).committed_keys() if committed is None else committed
        self._requested = functools.cache(Requests(store).wanted_milestones)
        self.kept = kept_milestones(self._committed)
        self.makers: set[str] = set()
        """Names of the steps that will publish milestones for the inputs checked so far."""

    def of(self, step: Step[Any], selected: Collection[str] | None = None) -> tuple[Lost, ...]:
        """Return the lost milestones among the inputs of `step`, if only the steps `selected` may run (None: all)."""
        asked = [(field, item) for field, item in step.inputs if item.milestone is not None]
        found = [self._lost(field, item, selected) for field, item in asked if item.key not in self._committed]
        return tuple(lost for lost in found if lost is not None)

    def of_milestone(self, item: OutputRef[Step[Any]]) -> Lost | None:
        """Return why a milestone will not be published; None if it is or will be."""
        return None if item.key in self._committed else self._lost("", item, None)

    def passed_by(
        self, step: Step[Any], running: Mapping[str, Held]
    ) -> tuple[MilestoneNotRequested | MilestoneMissing, ...]:
        """Return the input milestones of `step` that running attempts pass without publishing them.

        A milestone that an attempt has saved is a MilestoneMissing, which has the command that publishes it.
        """
        found: list[MilestoneNotRequested | MilestoneMissing] = []
        for field, item in step.inputs:
            held = running.get(item.digest)
            if held is None or item.milestone is None or item.key in self._committed:
                continue
            for reason in not_requested(held.holder, item.step, [item.milestone], field=field, progress=held.progress):
                if reason.can_request and reason.wanted in self._requested(item.digest):
                    continue
                is_saved = reason.wanted in self._saved(item)
                found.append(self._missing(field, item, reason.wanted) if is_saved else reason)
        return tuple(found)

    def _lost(self, field: str, item: OutputRef[Step[Any]], selected: Collection[str] | None) -> Lost | None:
        wanted = item.milestone
        if wanted is None or wanted == item.step.until:  # a step can always publish its own end
            return None
        steps = sorted(self._steps_of_run(item, selected), key=lambda step: step.until or 0)
        last = steps[-1]
        begin, end = _begin(last), last.until or 0
        if not begin < wanted <= end:
            return MilestoneOutsideRun(wanted, begin, end, field, f"{last.name}.{last.kind.stop_field}")
        reached = (*self.kept.get(item.digest, ()), *self._saved(item))
        maker = next((s for s in steps if (s.until or 0) >= wanted and s.key not in self._committed), None)
        if maker is not None and all(at <= wanted for at in reached if at <= (maker.until or 0)):
            self.makers.add(maker.name)
            return None
        return self._missing(field, item, wanted)

    def _missing(self, field: str, item: OutputRef[Step[Any]], wanted: int) -> MilestoneMissing:
        kept = self.kept.get(item.digest, [])
        nearest = _nearest(wanted, kept) if kept else None
        nearer = _nearest(wanted, [*kept, *self._saved(item)])
        stop = f"{item.step.name}.{item.step.kind.stop_field}"
        return MilestoneMissing(wanted, nearest, field, None if nearer == nearest else nearer, stop)

    def _steps_of_run(self, item: OutputRef[Step[Any]], selected: Collection[str] | None) -> list[Step[Any]]:
        found = self._by_digest.get(item.digest, [])
        if selected is None:
            return found or [item.step]
        others = (step for step in found if step.name != item.step.name)
        return [item.step, *(step for step in others if step.name in selected or step.key in self._committed)]

    @functools.cached_property
    def _by_digest(self) -> Mapping[str, list[Step[Any]]]:
        found: dict[str, list[Step[Any]]] = defaultdict(list)
        for step in self._graph.steps:
            found[step.digest].append(step)
        return found

    def _saved(self, item: OutputRef[Step[Any]]) -> Sequence[int]:
        """Return the steps that attempts saved and did not publish."""
        resumes_at = item.step.kind.resumes_at
        return () if resumes_at is None else list(resumes_at(self.left_behind.of(item.digest)))


def lost_in(
    graph: Graph, steps: Iterable[Step[Any]], store: Store, *, alone: bool = False
) -> dict[str, tuple[Lost, ...]]:
    """Return the lost input milestones of these steps of `graph`, by step name, without steps that lose none.

    With `alone`, each step runs with its ancestors only, and not with the whole graph.
    """
    asked = [step for step in steps if any(item.milestone not in (None, item.step.until) for _, item in step.inputs)]
    if not asked:
        return {}
    lost = LostMilestones(graph, store)
    of_each = {step.name: lost.of(step, graph.ancestors(step.name) if alone else None) for step in asked}
    return {name: found for name, found in of_each.items() if found}


def _begin(step: Step[Any]) -> int:
    start = step.predecessor
    while start is not None and start.digest == step.digest:
        start = start.step.predecessor
    return 0 if start is None else start.milestone or 0


def _nearest(wanted: int, at_steps: Sequence[int]) -> int:
    return min(at_steps, key=lambda at: abs(at - wanted))


def _input(field: str) -> str:
    return f"input {field}: " if field else ""


def _owner(stop: str) -> str:
    return stop.rpartition(".")[0]
