"""Stops: which steps last ended because a person told them to, by what lies in the store; for a plan."""

import datetime
import functools
from collections.abc import Iterable
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import STOP, Answer, Telling, Tellings
from marin_dag.plan.reasons import Stopped
from marin_dag.store.store import Store

SETTLING_SECONDS = 60.0
"""What the attempt that was stopped itself still writes after its answer, and how far clocks may differ."""


class Stops:
    """Those of one prefix. It asks once which steps were ever told anything, and looks at no others."""

    def __init__(self, store: Store, tellings: Tellings) -> None:
        self._store, self._tellings = store, tellings
        self._records = Records(store)

    def of(self, step: Step[Any]) -> tuple[Stopped, ...]:
        """Who told `step` to stop, if it did and nobody has got further with it or failed at it since; else nothing."""
        if step.digest not in self._told:
            return ()
        found = self._newest(self._tellings.of(step.digest))
        if found is None or self._is_overtaken(step, found[1]):
            return ()
        telling, answer = found
        said = answer.said.replace(f" ({telling.said})", "")  # the answer of an attempt may say once more why
        return (Stopped(telling.author, telling.reason, telling.told, said),)

    @functools.cached_property
    def _told(self) -> frozenset[str]:
        return self._tellings.digests()

    def _newest(self, tellings: Iterable[Telling]) -> tuple[Telling, Answer] | None:
        """That was heeded."""
        for telling in reversed([telling for telling in tellings if telling.word == STOP]):
            answer = self._tellings.answer_of(telling)
            if answer is not None and not answer.is_refused:
                return telling, answer
        return None

    def _is_overtaken(self, step: Step[Any], answer: Answer) -> bool:
        failures = self._records.failures(step.key)
        if failures and failures[-1].finished > answer.answered:
            return True
        settled = datetime.datetime.fromisoformat(answer.answered).timestamp() + SETTLING_SECONDS
        return any(entry.updated > settled for entry in self._store.list("work", f"{step.digest}/"))
