"""Lost milestones: inputs at a step of a trajectory that no run of a graph will make, and what there is instead."""

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from marin_dag.graph.graph import Graph
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import Tellings
from marin_dag.plan.milestone_reasons import MilestoneMissing, NotTold, OutsideTrajectory
from marin_dag.plan.remainder import LeftBehind
from marin_dag.plan.wanted_milestones import not_told
from marin_dag.store.store import Store

Lost = MilestoneMissing | OutsideTrajectory


class LostMilestones:
    """Looks at the inputs of a step: a trajectory that has passed a step without keeping it does not come back to it.

    One that has yet to reach the step publishes it on the way, for each run tells it what the graph starts from; of
    an attempt that began before anybody wanted the step, see `not_told`. Another leg of a trajectory that is done
    publishes only what it comes by itself, and only in a run that it is part of.
    """

    def __init__(self, graph: Graph, committed: frozenset[str], left_behind: LeftBehind, tellings: Tellings) -> None:
        self._committed, self._left_behind = committed, left_behind
        self._told = functools.cache(tellings.to_publish)
        self._kept = kept_milestones(committed)
        self._stops: dict[str, list[Step[Any]]] = defaultdict(list)
        """The steps that are stops of one trajectory, by its digest; filled when first asked for."""
        self._graph = graph
        self.makers: set[str] = set()
        """Names of the steps that inputs asked about so far count on, to come by what they want."""

    def of(self, step: Step[Any], selected: Collection[str] | None = None) -> tuple[Lost, ...]:
        """What is wrong with the inputs of `step`; nothing where they are there or will be.

        Args:
            step: of the graph.
            selected: names of the steps that a run is about and can run; None is for all of them.
        """
        found = (self._lost(field, item, selected) for field, item in step.inputs if item.key not in self._committed)
        return tuple(lost for lost in found if lost is not None)

    def _lost(self, field: str, item: OutputRef[Step[Any]], selected: Collection[str] | None) -> Lost | None:
        wanted = item.milestone
        if wanted is None or wanted == item.step.until:  # its own stop, which it can always be asked to make
            return None
        stops = sorted(self._stops_of(item, selected), key=lambda stop: stop.until or 0)
        last = stops[-1]
        begin, end = _begin_of(last), last.until or 0
        if not begin < wanted <= end:
            return OutsideTrajectory(wanted, begin, end, field, f"{last.name}.{last.kind.stop_field}")
        kept, saved = self._kept.get(item.digest, []), self._saved(item)
        maker = next((s for s in stops if (s.until or 0) >= wanted and s.key not in self._committed), None)
        if maker is not None and all(at <= wanted for at in (*kept, *saved) if at <= (maker.until or 0)):
            self.makers.add(maker.name)
            return None
        return self._missing(field, item, wanted)

    def passed_by(self, step: Step[Any], running: Mapping[str, Held]) -> tuple[NotTold | MilestoneMissing, ...]:
        """Of the inputs of `step`, those that an attempt at work was not told to keep; of one that has been saved all
        the same, that it is to be published."""
        inputs = dict(step.inputs)
        untold = not_told(step, running, self._committed, self._told)
        return tuple(
            self._missing(each.field, inputs[each.field], each.wanted)
            if each.wanted in self._saved(inputs[each.field])
            else each
            for each in untold
        )

    def of_milestone(self, item: OutputRef[Step[Any]]) -> Lost | None:
        """What is wrong with a step of a trajectory that nobody may need; None if it is there, or will be."""
        return None if item.key in self._committed else self._lost("", item, None)

    def _missing(self, field: str, item: OutputRef[Step[Any]], wanted: int) -> MilestoneMissing:
        kept = self._kept.get(item.digest, [])
        nearest = _nearest(wanted, kept) if kept else None
        nearer = _nearest(wanted, [*kept, *self._saved(item)])
        stop = f"{item.step.name}.{item.step.kind.stop_field}"
        return MilestoneMissing(wanted, nearest, field, None if nearer == nearest else nearer, stop)

    def _stops_of(self, item: OutputRef[Step[Any]], selected: Collection[str] | None) -> list[Step[Any]]:
        """Those that are there or may run, and the step that is asked of: what holds that up is another matter."""
        if not self._stops:
            for step in self._graph.steps:
                self._stops[step.digest].append(step)
        if selected is None:
            return self._stops[item.digest] or [item.step]
        others = (stop for stop in self._stops[item.digest] if stop.name != item.step.name)
        return [item.step, *(stop for stop in others if stop.name in selected or stop.key in self._committed)]

    def _saved(self, item: OutputRef[Step[Any]]) -> Sequence[int]:
        """Steps that attempts have saved and not published."""
        resumes_at = item.step.kind.resumes_at
        return () if resumes_at is None else list(resumes_at(self._left_behind.of(item.digest)))


def lost_in(
    graph: Graph, steps: Iterable[Step[Any]], store: Store, *, alone: bool = False
) -> dict[str, tuple[Lost, ...]]:
    """What is lost of the inputs of each of these steps, by name; of those that lack nothing there is no entry.

    Args:
        graph: with `steps` in it.
        steps: those that are asked about.
        store: where records and saved states are.
        alone: whether each is run with what it needs and nothing else, and not the whole graph.
    """
    asked = [step for step in steps if any(item.milestone not in (None, item.step.until) for _, item in step.inputs)]
    if not asked:
        return {}
    lost = LostMilestones(graph, Records(store).committed_keys(), LeftBehind(store), Tellings(store))
    of_each = {step.name: lost.of(step, graph.ancestors(step.name) if alone else None) for step in asked}
    return {name: found for name, found in of_each.items() if found}


def kept_milestones(committed: Iterable[str]) -> Mapping[str, list[int]]:
    """The steps of each trajectory that are published, by its digest."""
    kept: dict[str, list[int]] = {}
    for key in committed:
        digest, _, milestone = key.partition("@")
        if milestone:
            kept.setdefault(digest, []).append(int(milestone))
    return kept


def _begin_of(step: Step[Any]) -> int:
    """Where the trajectory of `step` begins, of which it may be a later leg."""
    start = step.predecessor
    while start is not None and start.digest == step.digest:
        start = start.step.predecessor
    return 0 if start is None else start.milestone or 0


def _nearest(wanted: int, at_steps: Sequence[int]) -> int:
    return min(at_steps, key=lambda at: abs(at - wanted))
