"""Wanted milestones: the steps that trajectories are to publish on their way, and attempts at work that were not told.

They are those of the whole graph, whatever part of it a run is about: a trajectory that has passed a step does not come
back to it, and another run may be the one that starts there.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held, Holder
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.requests import PUBLISH
from marin_dag.plan.milestone_reasons import NotTold

WantedMilestones = Mapping[str, frozenset[int]]
"""By the digest of the trajectory, of which several steps may be stops."""


def wanted_milestones(steps: Iterable[Step[Any]]) -> WantedMilestones:
    """Where `steps` start from a trajectory, and where those that are one stop."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for step in steps:
        if step.until is not None:
            wanted[step.digest].add(step.until)
        for _, item in step.inputs:
            if item.milestone is not None:
                wanted[item.digest].add(item.milestone)
    return {digest: frozenset(milestones) for digest, milestones in wanted.items()}


def still_wanted(
    wanted: WantedMilestones, step: Step[Any], committed: Collection[str], *, told: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """What an attempt at `step` is to publish on its way, short of its own stop: what `wanted` and `told` say."""
    stop = step.until or 0
    milestones = sorted(wanted.get(step.digest, frozenset()) | told)
    return tuple(at for at in milestones if at < stop and f"{step.digest}@{at}" not in committed)


def earlier_milestones(step: Step[Any], committed: Collection[str]) -> tuple[int, ...]:
    """The committed milestones on the way of `step` to its stop, in order: of a later leg those behind its start."""
    if step.until is None:
        return ()
    start = max((item.milestone or 0 for _, item in step.inputs if item.digest == step.digest), default=0)
    beginning = f"{step.digest}@"
    found = (int(key.removeprefix(beginning)) for key in committed if key.startswith(beginning))
    return tuple(sorted(at for at in found if start < at < step.until))


def goes_past(holder: Holder, milestone: int, *, is_stop: bool) -> bool:
    """Whether the attempt of `holder` comes by this step of its trajectory and was not told to publish it.

    Args:
        holder: of the lease of the trajectory.
        milestone: a step that is not committed.
        is_stop: whether the step that is asked for ends there. A claim of an earlier version does not say what its
            attempt was told; then it is taken to be told of such a step, and of no other.
    """
    if holder.milestones is None:
        return not is_stop
    return milestone not in holder.milestones and any(milestone < told for told in holder.milestones)


def passed_by(
    holder: Holder, step: Step[Any], milestones: Iterable[int], *, progress: Progress | None = None
) -> list[NotTold]:
    """Of what a run wants of the trajectory of `step`, what the attempt of another run was not told of.

    Args:
        progress: how far that is, as of its last heartbeat.
    """
    passed = (at for at in milestones if goes_past(holder, at, is_stop=at == step.until))
    return [_not_told(holder, at, step, done=_steps_done(progress)) for at in passed]


def own_stop_not_told(step: Step[Any], running: Mapping[str, Held], committed: Collection[str]) -> tuple[NotTold, ...]:
    """The stop of `step`, where an attempt at work on its trajectory goes past it."""
    held = running.get(step.digest)
    if held is None or step.until is None or step.key in committed:
        return ()
    return tuple(passed_by(held.holder, step, [step.until], progress=held.progress))


def not_told(
    step: Step[Any],
    running: Mapping[str, Held],
    committed: Collection[str],
    told: Callable[[str], Collection[int]],
) -> tuple[NotTold, ...]:
    """Of the inputs of `step`, those at a step of a trajectory whose attempt at work goes past it.

    Args:
        told: what attempts at a trajectory, by its digest, were told to publish since they began.
    """
    found = []
    for field, item in step.inputs:
        held = running.get(item.digest)
        if held is None or item.milestone is None or item.key in committed:
            continue
        if goes_past(held.holder, item.milestone, is_stop=item.milestone == item.step.until):
            done = _steps_done(held.progress)
            reason = _not_told(held.holder, item.milestone, item.step, field=field, done=done)
            if not (reason.hears and not reason.is_past and item.milestone in told(item.digest)):
                found.append(reason)
    return tuple(found)


def _steps_done(progress: Progress | None) -> int | None:
    return progress.done if progress is not None and progress.unit == "steps" else None


def _not_told(holder: Holder, milestone: int, step: Step[Any], *, field: str = "", done: int | None = None) -> NotTold:
    return NotTold(
        wanted=milestone,
        field=field,
        digest=step.digest,
        step=holder.name,
        host=holder.host,
        pid=holder.pid,
        since=holder.since,
        done=done,
        hears=PUBLISH in step.kind.hears,
    )
