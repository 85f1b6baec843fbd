"""Wanted milestones: the steps that trajectories are to publish on their way, and attempts at work that were not told.

They are those of the whole graph, whatever part of it a run is about: a trajectory that has passed a step does not come
back to it, and another run may be the one that starts there.
"""

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from marin_dag.graph import Graph
from marin_dag.lease import Held, Holder
from marin_dag.milestone_reasons import NotTold, RunAhead
from marin_dag.step import Step

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


def still_wanted(wanted: WantedMilestones, step: Step[Any], committed: Collection[str]) -> tuple[int, ...]:
    """What an attempt at `step` is to publish on its way, short of its own stop."""
    stop = step.until or 0
    milestones = sorted(wanted.get(step.digest, ()))
    return tuple(at for at in milestones if at < stop and f"{step.digest}@{at}" not in committed)


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


def passed_by(holder: Holder, milestones: Iterable[int]) -> list[NotTold]:
    """Of the steps that a run wants of a trajectory, those that the attempt of another run was not told of."""
    passed = (at for at in milestones if goes_past(holder, at, is_stop=False))
    return [_not_told(holder, at) for at in passed]


def not_told(step: Step[Any], running: Mapping[str, Held], committed: Collection[str]) -> tuple[NotTold, ...]:
    """Of the inputs of `step`, those at a step of a trajectory whose attempt at work goes past it."""
    found = []
    for field, item in step.inputs:
        held = running.get(item.digest)
        if held is None or item.milestone is None or item.key in committed:
            continue
        if goes_past(held.holder, item.milestone, is_stop=item.milestone == item.step.until):
            progress = held.progress
            done = progress.done if progress is not None and progress.unit == "steps" else None
            found.append(_not_told(held.holder, item.milestone, field=field, done=done))
    return tuple(found)


def runs_ahead(
    step: Step[Any], graph: Graph, kept: Mapping[str, str], running: Mapping[str, Held], committed: Collection[str]
) -> tuple[RunAhead, ...]:
    """Of the inputs of `step`, which is not in `graph`, those at a step of a trajectory that nobody has begun, with
    every run at work on what the trajectory needs that has read of nobody who wants it.

    Whether such a run goes on to the trajectory is known to nobody else. One that waits for another holds no lease,
    and is not seen.

    Args:
        kept: when steps of `graph` were kept which are in no recipe, by name: a run that began before has not read of
            them. Its time is that of its own machine.
    """
    found = []
    for _, item in step.inputs:
        at = item.milestone
        if at is None or item.key in committed or item.digest in running:
            continue
        needed = {graph.step(name).digest for name in graph.ancestors(item.step.name)}
        runs: dict[tuple[str, int, str], list[Holder]] = defaultdict(list)
        for digest in sorted(needed & running.keys()):
            holder = running[digest].holder
            runs[holder.host, holder.pid, holder.process].append(holder)
        for holders in runs.values():
            if at in wanted_milestones(_read_by(holders, graph, kept)).get(item.digest, ()):
                continue
            first = min(holders, key=lambda holder: holder.since)
            names = tuple(sorted(holder.name for holder in holders))
            found.append(RunAhead(at, item.step.name, names, first.host, first.pid, first.since))
    return tuple(found)


def _read_by(holders: Iterable[Holder], graph: Graph, kept: Mapping[str, str]) -> Iterator[Step[Any]]:
    """The steps of `graph` that were there when the run of `holders` began."""
    began = min(datetime.datetime.fromisoformat(holder.run_since or holder.since) for holder in holders)
    for step in graph.steps:
        if step.name not in kept or datetime.datetime.fromisoformat(kept[step.name]) <= began:
            yield step


def _not_told(holder: Holder, milestone: int, *, field: str = "", done: int | None = None) -> NotTold:
    return NotTold(
        wanted=milestone,
        field=field,
        step=holder.name,
        host=holder.host,
        pid=holder.pid,
        since=holder.since,
        done=done,
    )
