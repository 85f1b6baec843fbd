"""Stop requests of a plan: which steps last ended because a person asked them to stop."""

import datetime
import functools
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import STOP, Reply, Request, Requests
from marin_dag.plan.reasons import Stopped
from marin_dag.store.store import Store

SETTLING_SECONDS = 60.0
"""How long the stopped attempt may still write after its reply, and how far clocks may differ."""


class StopRequests:
    """Stop requests below one prefix. One listing finds the steps with requests; other steps cost nothing."""

    def __init__(self, store: Store, requests: Requests) -> None:
        self._store, self._requests = store, requests
        self._records = Records(store)

    def of(self, step: Step[Any]) -> tuple[Stopped, ...]:
        """Return the newest stop request that `step` followed, unless an attempt got further or failed since."""
        if step.digest not in self._asked:
            return ()
        for request in reversed(self._requests.of(step.digest)):
            reply = self._requests.reply_to(request) if request.action == STOP else None
            if reply is not None and not reply.is_declined:
                return () if self._is_outdated(step, reply) else (_stopped(request, reply),)
        return ()

    @functools.cached_property
    def _asked(self) -> frozenset[str]:
        return self._requests.digests()

    def _is_outdated(self, step: Step[Any], reply: Reply) -> bool:
        failures = self._records.failures(step.key)
        if failures and failures[-1].finished > reply.sent:
            return True
        settled = datetime.datetime.fromisoformat(reply.sent).timestamp() + SETTLING_SECONDS
        return any(entry.updated > settled for entry in self._store.list("work", f"{step.digest}/"))


def _stopped(request: Request, reply: Reply) -> Stopped:
    text = reply.text.replace(f" ({request.text})", "")  # an attempt may repeat the request in its reply
    return Stopped(request.author, request.reason, request.sent, text)
