"""RunHearing: what the driver hears of what people tell its steps, and what it tells the attempts of other runs.

Of a step at work its attempt hears; of one that waits for its turn, for resources or for its next try, nobody else
would. What people tell is advice: a store that does not give it or take it is said once, and fails no step.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Holder
from marin_dag.ledger.requests import END, PUBLISH, STOP, Telling, Tellings
from marin_dag.plan.milestone_reasons import NotTold
from marin_dag.plan.reasons import render
from marin_dag.plan.wanted_milestones import passed_by
from marin_dag.run import hearing
from marin_dag.run.frontier import Frontier
from marin_dag.run.live import Display
from marin_dag.run.node import Node

ResultT = TypeVar("ResultT")


class RunHearing:
    """Of one run, from its beginning on; `name` is that of a detached one."""

    def __init__(self, tellings: Tellings, frontier: Frontier, display: Display, name: str) -> None:
        self.tellings = tellings
        self.old: frozenset[str] = frozenset()
        """Ids of what was told before the run began, which is the newer word."""
        self.is_told_to_end = False
        """Whether the run itself is to cancel what saves its work, as at a second Ctrl-C."""
        self._name = name
        self._frontier = frontier
        self._display = display
        self._failures: set[str] = set()
        self._known: set[str] = set()
        self._stops: dict[str, Telling] = {}
        self._unheeded: dict[str, Telling] = {}
        """Those of `_stops` that are yet to be brought to the steps which no attempt hears for."""
        self._last_look = time.monotonic()

    def begin(self) -> None:
        """What lies there by now is old, but for what was told to this very run while it started."""
        self.old = self.advised(self.tellings.ids, frozenset())
        nothing: list[Telling] = []
        own = self.advised(lambda: self.tellings.of(self._name), nothing) if self._name else nothing
        self._known |= self.old - {telling.id for telling in own}

    def advised(self, ask: Callable[[], ResultT], otherwise: ResultT) -> ResultT:
        """What the store says. Where it does not, that is said once: what people tell is advice, and fails no step."""
        try:
            found = ask()
        except (UserError, OSError) as error:
            self._say_once(f"what steps are told cannot be seen or answered: {type(error).__name__}: {error}")
            return otherwise
        for damaged in self.tellings.damaged.values():
            self._say_once(damaged)
        return found

    def _say_once(self, message: str) -> None:
        if message not in self._failures:
            self._failures.add(message)
            self._display.say(message)

    def heed_new_stops(self, nodes: Iterable[Node], *, withdraw: Callable[[str], None]) -> None:
        """Stops what no attempt hears for: steps that wait, in this run, for their turn or for resources.

        What is handed over is withdrawn, by its key. It looks TOLD_POLL_SECONDS after the last look at the earliest.
        """
        if time.monotonic() - self._last_look >= hearing.TOLD_POLL_SECONDS:
            self._look()
        if self._unheeded:
            new, self._unheeded = self._unheeded, {}
            self._heed(new, [node for node in nodes if node.step.digest in new], withdraw)

    def _heed(self, stops: Mapping[str, Telling], nodes: Sequence[Node], withdraw: Callable[[str], None]) -> None:
        heard = {node.step.digest for node in nodes if node.state == "running" and node.has_started}
        for node in nodes:
            if node.state == "running" and not node.has_started:
                node.told_to_stop = stops[node.step.digest]
                withdraw(node.step.key)
            elif node.state == "waiting" and not node.is_elsewhere:
                self.stop_unbegun(node, stops[node.step.digest], is_answered=node.step.digest in heard)

    def stop_unbegun(self, node: Node, stop: Telling, *, is_answered: bool = False) -> None:
        """Leaves a step to another run that no attempt of this one is at work on."""
        self._frontier.move(node, "stopped")
        self._display.event(node.step.name, "stopped", stop.said)
        if not is_answered:
            self.answer(stop, "it is not begun, or not again")

    def stop_of(self, digest: str) -> Telling | None:
        """Who told that step to stop since the run began, as of now."""
        self._look()
        return self._stops.get(digest)

    def tell(self, holder: Holder, step: Step[Any], wanted: Sequence[int]) -> bool:
        """Tells the attempt of another run what this one wants of its trajectory, and it was not told when it began.

        Returns:
            False if the store did not take it.
        """
        passed = passed_by(holder, step, wanted)
        return not passed or self.advised(lambda: self._tell(holder, step, passed), False)

    def _tell(self, holder: Holder, step: Step[Any], passed: Sequence[NotTold]) -> bool:
        told = self.tellings.to_publish(step.digest)
        for each in passed:
            if not each.hears:
                self._display.say(render(each))
            elif each.wanted not in told:
                why = "another run waits for it"
                self.tellings.tell(step.digest, holder.name, PUBLISH, milestone=each.wanted, reason=why)
                self._display.say(f"{holder.name}, running on {each.where}, is told to publish step {each.wanted:,}")
        return True

    def to_publish(self, digest: str) -> frozenset[int]:
        """See Tellings."""
        return self.advised(lambda: self.tellings.to_publish(digest), frozenset())

    def answer(self, telling: Telling, said: str) -> None:
        """In place of an attempt that there is none of."""
        self.advised(lambda: self.tellings.answer(telling, "", said), None)

    def _look(self) -> None:
        self._last_look = time.monotonic()
        nothing: list[Telling] = []
        new = self.advised(lambda: self.tellings.of_all(known=self._known), nothing)
        self._known |= {telling.id for telling in new}
        self.is_told_to_end |= any(telling.word == END and telling.digest == self._name for telling in new)
        for telling in new:
            if telling.word == STOP and telling.digest not in self._stops:
                self._stops[telling.digest] = self._unheeded[telling.digest] = telling
