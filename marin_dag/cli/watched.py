"""Watched graph: what a page shows of one graph on one prefix: verdicts, running steps, requests and replies."""

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

SCHEMA = "marin_dag.page/2"
PLAN_SECONDS = 30.0
"""A plan costs more than the list of running steps. It is made again when that list changes, or after this time."""
LOOK_SECONDS = 4.0
"""The store is read this often, however many pages are open; drivers report progress every ten seconds."""
SHOWN_REQUESTS, SHOWN_WAITING = 20, 50
LOG_BYTES = 64 * 1024
"""The end of a log that is shown."""
WAITING = frozenset({Verdict.FAILED, Verdict.BLOCKED, Verdict.DRIFTED})


class Watched:
    """The steps of one graph on one store; safe for the threads of a server."""

    def __init__(self, pipeline: str, graph: Graph, store: Store) -> None:
        self._pipeline, self._graph, self._store = pipeline, graph, store
        self._lock = threading.Lock()
        self._looked = self._planned = -PLAN_SECONDS
        self._is_outdated = True
        """Whether a request was made since the last look began."""
        self._document: dict[str, Any] = {}
        self._failure: StoreError | OSError | None = None
        """The error of the last look."""
        self._plan: Plan | None = None
        self._leases: Mapping[str, Held] = {}
        """The leases of running steps, by digest."""
        self._paces: dict[tuple[str, int], Pace] = {}
        """Paces by digest and epoch: each attempt has its own."""
        self._requests: dict[str, Telling] = {}
        """The requests shown, by id: a request never changes."""
        self._answers: dict[str, dict[str, Any]] = {}
        """The replies shown, by the id of the request."""

    def document(self) -> dict[str, Any]:
        """Return what is shown, as JSON data, read from the store at most every `LOOK_SECONDS`.

        Raises:
            StoreError, OSError: the store does not answer, or did not at the last look.
        """
        with self._lock:
            if self._is_outdated or time.monotonic() - self._looked >= LOOK_SECONDS:
                self._is_outdated = False  # first: a request during the look may come too late for it
                try:
                    self._document, self._failure = self._look(), None
                except (StoreError, OSError) as error:
                    self._failure = error  # for every waiting thread: else each would wait for the store in turn
                self._looked = time.monotonic()
            if self._failure is not None:
                raise self._failure
            return self._document

    def tell(self, name: str, word: str, *, at: int | None, reason: str) -> Said:
        """Send a request, as the command `tell` does; raise its errors."""
        said = tell_step(self._store, self._graph, self._graph.step(name), word, at=at, reason=reason)
        self._is_outdated = True  # without the lock: a look that hangs would delay the reply
        return said

    def log(self, name: str) -> str:
        """Return the end of the log of the newest attempt; "" where there is none yet.

        Raises:
            UserError: the step does not exist.
        """
        step = self._graph.step(name)
        held = self._leases.get(step.digest)  # its log lies under the name by which it runs
        path = newest_log(self._store, (held and held.holder.name) or step.name, step.digest)
        return "" if path is None else self._store.read(path)[-LOG_BYTES:].decode(errors="replace")

    def _look(self) -> dict[str, Any]:
        alive, _ = Leases(self._store).running_and_silent()  # by our clock, as in a plan: a look writes nothing
        running = {digest: held for digest, held in alive.items() if not held.holder.does}
        now = time.monotonic()
        if self._plan is None or running.keys() != self._leases.keys() or now - self._planned >= PLAN_SECONDS:
            self._plan, self._planned = make_plan(self._graph, self._store), now
        self._leases = running
        epochs = [(digest, held.epoch) for digest, held in running.items()]
        self._paces = {epoch: self._paces.get(epoch) or Pace() for epoch in epochs}
        tellings = Tellings(self._store)
        requests = self._newest_requests(tellings)
        steps = {step.digest: step for step in self._graph.steps}
        of_others = [held for digest, held in running.items() if digest not in steps]
        verdicts = Counter(planned.verdict for planned in self._plan.steps)
        waiting = [planned for planned in self._plan.steps if planned.verdict in WAITING]
        return {
            "schema": SCHEMA,
            "pipeline": self._pipeline,
            "prefix": self._store.prefix,
            "looked": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "verdicts": {str(verdict): verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
            "running": [self._running(steps[digest], running[digest]) for digest in steps if digest in running],
            "running_with_other_settings": [
                {"name": held.holder.name, "holder": held.holder.said} for held in of_others
            ],
            "waiting": [
                {"name": each.name, "verdict": str(each.verdict), "reasons": list(render_all(each.reasons))}
                for each in waiting[:SHOWN_WAITING]
            ],
            "num_waiting": len(waiting),
            "requests": requests,
            "damaged": sorted(tellings.damaged.values()),
        }

    def _running(self, step: Step[Any], held: Held) -> dict[str, Any]:
        progress, name = held.progress, held.holder.name
        pace = self._paces[step.digest, held.epoch]
        seconds_left = None if progress is None else pace.seconds_left(progress, time.monotonic())
        is_of_graph = name in self._graph and self._graph.step(name).digest == step.digest
        return {
            "name": name if is_of_graph else step.name,  # its buttons send requests to the step of that name
            "is_queued": held.is_queued,
            "holder": held.holder.said,
            "share": None if progress is None else progress.share,
            "progress": "" if progress is None else figures_of(progress, seconds_left),
            "words": list(words_of(step)),
            "takes_milestone": PUBLISH in step.kind.hears,
        }

    def _newest_requests(self, tellings: Tellings) -> list[dict[str, Any]]:
        newest = tellings.newest(SHOWN_REQUESTS, known=self._requests)
        self._requests = {telling.id: telling for telling in newest}
        self._answers = {id_: answer for id_, answer in self._answers.items() if id_ in self._requests}
        for telling in newest:
            answer = None if telling.id in self._answers else tellings.answer_of(telling)
            if answer is not None:
                self._answers[telling.id] = {"text": answer.said, "is_refused": answer.is_refused}
        return [
            {
                "name": telling.name,
                "requested": telling.told,
                "text": telling.said,
                "reply": self._answers.get(telling.id),
            }
            for telling in newest
        ]
