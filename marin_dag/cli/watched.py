"""Watched: what a page shows of one graph on one prefix: verdicts, who is at work and how far, what was told."""

import datetime
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from marin_dag.cli.log import newest_log
from marin_dag.cli.tell import Said, tell_step, words_of
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held, Leases
from marin_dag.ledger.requests import PUBLISH, Telling, Tellings
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import render_all
from marin_dag.run.live import Pace, figures_of
from marin_dag.store.store import Store, StoreError

SCHEMA = "marin_dag.page/1"
PLAN_SECONDS = 30.0
"""A plan reads more than who is at work does, and is made anew when that changes, or so much later."""
LOOK_SECONDS = 4.0
"""Drivers say every ten how far they are; however many pages are open, the store is asked so often."""
SHOWN_TELLINGS, SHOWN_WAITING = 20, 50
LOG_BYTES = 64 * 1024
"""Of the end of a log."""
WAITING = frozenset({Verdict.FAILED, Verdict.BLOCKED, Verdict.DRIFTED})


class Watched:
    """The steps of one graph on one store; for the threads of a server."""

    def __init__(self, pipeline: str, graph: Graph, store: Store) -> None:
        self._pipeline, self._graph, self._store = pipeline, graph, store
        self._lock = threading.Lock()
        self._looked = self._planned = -PLAN_SECONDS
        self._is_outdated = True
        """Whether something was told since the last look began."""
        self._document: dict[str, Any] = {}
        self._failure: StoreError | OSError | None = None
        """Of the last look."""
        self._plan: Plan | None = None
        self._at_work: Mapping[str, Held] = {}
        """By digest."""
        self._paces: dict[tuple[str, int], Pace] = {}
        """By digest and epoch: a later attempt has a pace of its own."""
        self._told: dict[str, Telling] = {}
        """Those shown, by id: a telling never changes."""
        self._answers: dict[str, dict[str, Any]] = {}
        """To those shown, by the id of what is answered."""

    def document(self) -> dict[str, Any]:
        """All that is shown, as JSON data; read from the store unless it just was.

        Raises:
            StoreError, OSError: the store does not answer, or just did not.
        """
        with self._lock:
            if self._is_outdated or time.monotonic() - self._looked >= LOOK_SECONDS:
                self._is_outdated = False  # first: the look may be past what is told meanwhile
                try:
                    self._document, self._failure = self._look(), None
                except (StoreError, OSError) as error:
                    self._failure = error  # for all who wait: each would else be the next to wait for the store
                self._looked = time.monotonic()
            if self._failure is not None:
                raise self._failure
            return self._document

    def tell(self, name: str, word: str, *, at: int | None, reason: str) -> Said:
        """As the command `tell`; raises what it does."""
        said = tell_step(self._store, self._graph, self._graph.step(name), word, at=at, reason=reason)
        self._is_outdated = True  # without the lock: a store that hangs in a look would hide that it is told
        return said

    def log(self, name: str) -> str:
        """The end of the log of the newest attempt at a step; "" where none has left one yet.

        Raises:
            UserError: there is no such step.
        """
        step = self._graph.step(name)
        held = self._at_work.get(step.digest)  # whose log lies under the name by which it runs
        path = newest_log(self._store, (held and held.holder.name) or step.name, step.digest)
        return "" if path is None else self._store.read(path)[-LOG_BYTES:].decode(errors="replace")

    def _look(self) -> dict[str, Any]:
        alive, _ = Leases(self._store).running_and_silent()  # as a plan does, by our clock: a look writes nothing
        at_work = {digest: held for digest, held in alive.items() if not held.holder.does}
        now = time.monotonic()
        if self._plan is None or at_work.keys() != self._at_work.keys() or now - self._planned >= PLAN_SECONDS:
            self._plan, self._planned = make_plan(self._graph, self._store), now
        self._at_work = at_work
        epochs = [(digest, held.epoch) for digest, held in at_work.items()]
        self._paces = {epoch: self._paces.get(epoch) or Pace() for epoch in epochs}
        tellings = Tellings(self._store)
        told = self._newest_tellings(tellings)
        steps = {step.digest: step for step in self._graph.steps}
        of_others = [held for digest, held in at_work.items() if digest not in steps]
        verdicts = Counter(planned.verdict for planned in self._plan.steps)
        waiting = [planned for planned in self._plan.steps if planned.verdict in WAITING]
        return {
            "schema": SCHEMA,
            "pipeline": self._pipeline,
            "prefix": self._store.prefix,
            "looked": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "verdicts": {str(verdict): verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
            "at_work": [self._worked_on(steps[digest], at_work[digest]) for digest in steps if digest in at_work],
            "at_work_of_other_settings": [
                {"name": held.holder.name, "holder": held.holder.description} for held in of_others
            ],
            "waiting": [
                {"name": each.name, "verdict": str(each.verdict), "reasons": list(render_all(each.reasons))}
                for each in waiting[:SHOWN_WAITING]
            ],
            "num_waiting": len(waiting),
            "told": told,
            "damaged": sorted(tellings.damaged.values()),
        }

    def _worked_on(self, step: Step[Any], held: Held) -> dict[str, Any]:
        progress, name = held.progress, held.holder.name
        pace = self._paces[step.digest, held.epoch]
        seconds_left = None if progress is None else pace.seconds_left(progress, time.monotonic())
        is_of_graph = name in self._graph and self._graph.step(name).digest == step.digest
        return {
            "name": name if is_of_graph else step.name,  # its buttons tell the step of that name
            "is_queued": held.is_queued,
            "holder": held.holder.description,
            "share": None if progress is None else progress.share,
            "how_far": "" if progress is None else figures_of(progress, seconds_left),
            "words": list(words_of(step)),
            "can_name_a_step": PUBLISH in step.kind.hears,
        }

    def _newest_tellings(self, tellings: Tellings) -> list[dict[str, Any]]:
        newest = tellings.newest(SHOWN_TELLINGS, known=self._told)
        self._told = {telling.id: telling for telling in newest}
        self._answers = {id_: answer for id_, answer in self._answers.items() if id_ in self._told}
        for telling in newest:
            answer = None if telling.id in self._answers else tellings.answer_of(telling)
            if answer is not None:
                self._answers[telling.id] = {"said": answer.said, "is_refused": answer.is_refused}
        return [
            {
                "name": telling.name,
                "told": telling.told,
                "said": telling.said,
                "answer": self._answers.get(telling.id),
            }
            for telling in newest
        ]
