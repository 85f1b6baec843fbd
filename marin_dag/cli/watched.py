"""Watched: the steps of one graph on one store, as data for the page of page_server.py."""

import datetime
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from marin_dag.cli.outputs import newest_log
from marin_dag.cli.polled import Polled
from marin_dag.cli.tell import Sent, actions_of, send_request
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held, Leases
from marin_dag.ledger.requests import PUBLISH, Request, Requests
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import PlannedStep, Verdict
from marin_dag.plan.reasons import render_all
from marin_dag.run.live import Pace, figures_of
from marin_dag.store.store import Store

SCHEMA = "marin_dag.page/3"
PLAN_SECONDS = 30.0
"""A plan costs more than the list of running steps. It is made again when that list changes, or after this time."""
SHOWN_REQUESTS, SHOWN_WAITING, SHOWN_STEPS = 20, 50, 2_000
LOG_BYTES = 64 * 1024
"""The end of a log that is shown."""
WAITING = frozenset({Verdict.FAILED, Verdict.BLOCKED, Verdict.DRIFTED})


class Watched:
    """The steps of one graph on one store; safe for the threads of a server."""

    def __init__(self, pipeline: str, plan: Plan, store: Store) -> None:
        self.pipeline, self.steps = pipeline, plan.graph.steps[:SHOWN_STEPS]
        self._graph, self._store = plan.graph, store
        self._polled = Polled(lambda: self._look())
        self._plan, self._planned = plan, time.monotonic()
        self._leases: Mapping[str, Held] | None = None
        """Leases that the last look found."""
        self._paces: dict[tuple[str, int], Pace] = {}
        """Paces by digest and epoch: each attempt has its own."""
        self._requests: dict[str, Request] = {}
        """The requests shown, by id: a request never changes."""
        self._replies: dict[str, dict[str, Any] | None] = {}

    def document(self) -> dict[str, Any]:
        """Return the data of the page, as JSON."""
        return self._polled.get()

    def tell(self, name: str, word: str, *, at: int | None, reason: str) -> Sent:
        """Send a request, as the command `tell` does; raise its errors."""
        sent = send_request(self._store, self._graph, self._graph.step(name), word, at=at, reason=reason)
        self._polled.outdate()
        return sent

    def log(self, name: str) -> str:
        """Return the end of the log of the newest attempt; "" where there is none yet."""
        step = self._graph.step(name)
        held = (self._leases or {}).get(step.digest)  # its log lies under the name by which it runs
        newest = newest_log(self._store, (held and held.holder.name) or step.name, step.digest)
        if newest is None:
            return ""
        blocks = self._store.blocks(newest.path, max(0, newest.size_in_bytes - LOG_BYTES))
        return b"".join(blocks)[-LOG_BYTES:].decode(errors="replace")

    def _look(self) -> dict[str, Any]:
        alive, _ = Leases(self._store).running_and_silent()  # by our clock, as in a plan: a look writes nothing
        running = {digest: held for digest, held in alive.items() if not held.holder.does}
        now = time.monotonic()
        is_other = self._leases is not None and running.keys() != self._leases.keys()
        if is_other or now - self._planned >= PLAN_SECONDS:
            self._plan, self._planned = make_plan(self._graph, self._store), now
        self._leases = running
        epochs = [(digest, held.epoch) for digest, held in running.items()]
        self._paces = {epoch: self._paces.get(epoch) or Pace() for epoch in epochs}
        store_requests = Requests(self._store)
        requests = self._newest_requests(store_requests)
        steps = {step.digest: step for step in self._graph.steps}
        of_others = [held for digest, held in running.items() if digest not in steps]
        verdicts = Counter(planned.verdict for planned in self._plan.steps)
        waiting = [planned for planned in self._plan.steps if planned.verdict in WAITING]
        return {
            "schema": SCHEMA,
            "pipeline": self.pipeline,
            "prefix": self._store.prefix,
            "looked": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "verdicts": {str(verdict): verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
            "running": [self._running(steps[digest], running[digest]) for digest in steps if digest in running],
            "running_with_other_settings": [
                {"name": held.holder.name, "holder": held.holder.description} for held in of_others
            ],
            "waiting": [
                {"name": each.name, "verdict": str(each.verdict), "reasons": list(render_all(each.reasons))}
                for each in waiting[:SHOWN_WAITING]
            ],
            "num_waiting": len(waiting),
            "steps": [_in_graph(planned) for planned in self._plan.steps[:SHOWN_STEPS]],
            "num_steps": len(self._plan.steps),
            "requests": requests,
            "damaged": sorted(store_requests.damaged.values()),
        }

    def _running(self, step: Step[Any], held: Held) -> dict[str, Any]:
        progress, name = held.progress, held.holder.name
        pace = self._paces[step.digest, held.epoch]
        seconds_left = None if progress is None else pace.seconds_left(progress, time.monotonic())
        is_of_graph = name in self._graph and self._graph.step(name).digest == step.digest
        return {
            "name": name if is_of_graph else step.name,  # its buttons send requests to the step of that name
            "is_queued": held.is_queued,
            "holder": held.holder.description,
            "share": None if progress is None else progress.share,
            "progress": "" if progress is None else figures_of(progress, seconds_left),
            "words": list(actions_of(step)),
            "takes_milestone": PUBLISH in step.kind.requests,
        }

    def _newest_requests(self, store_requests: Requests) -> list[dict[str, Any]]:
        newest = store_requests.newest(SHOWN_REQUESTS, known=self._requests)
        self._requests = {request.id: request for request in newest}
        replies = {request.id: self._replies.get(request.id) or _reply(store_requests, request) for request in newest}
        self._replies = replies
        return [
            {"name": request.name, "requested": request.sent, "text": request.text, "reply": replies[request.id]}
            for request in newest
        ]


def _reply(requests: Requests, request: Request) -> dict[str, Any] | None:
    reply = requests.reply_to(request)
    return None if reply is None else {"text": reply.text, "is_refused": reply.is_declined}


def _in_graph(planned: PlannedStep) -> dict[str, Any]:
    is_done = planned.verdict is Verdict.DONE
    return {
        "name": planned.name,
        "kind": planned.step.kind.name,
        "verdict": str(planned.verdict),
        "reasons": [] if is_done else list(render_all(planned.reasons)),
        "inputs": sorted({item.step.name for _, item in planned.step.inputs}),
    }
