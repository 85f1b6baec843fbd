"""Live batches: the rows of a training step for the page of a run."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from pipelines.finished import tokenizer_of
from pipelines.run_curves import LoggedPhase
from pipelines.trained_batch import Row, TrainedBatch, data_errors_of, find_batch
from runtime.report.markup import MOST_CHARACTERS, printable_data

MOST_ROWS, MOST_BATCHES = 8, 4
MOST_DIGITS = 18
"""Digits of a step or of a number of tokens, which are 64-bit integers."""


class LiveBatches:
    """The batches of the phases of a graph; several threads may ask."""

    def __init__(self, session: Session, phases: Sequence[LoggedPhase]) -> None:
        self._session = session
        self._phases = {phase.name: phase for phase in phases}
        self._readers = ThreadPoolExecutor(MOST_BATCHES)
        self._lock = threading.Lock()
        self._reads: dict[tuple[str, int], Future[TrainedBatch]] = {}
        """Batches that are being read, and recorded batches; the most recently used one is the last."""

    def data(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return rows of a training step, which `step` or the run's `tokens` after it names; of one `source` or of all.

        Raises:
            UserError: no such training step, or its batch cannot be found.
        """
        name, number = query.get("phase", ""), query.get("step") or query.get("tokens", "")
        if name not in self._phases or not number.isdecimal() or len(number) > MOST_DIGITS:
            raise UserError(f"page: no training step {number!r} of phase {name!r}; load the page again.")
        phase = self._phases[name]
        step = int(number) if "step" in query else phase.step_at(int(number))
        with data_errors_of("page"):
            return self._data(phase, step, query.get("source", ""))

    def _batch(self, phase: LoggedPhase, step: int) -> TrainedBatch:
        """Return a batch; calls for one step wait for its first read, and calls for other steps do not."""
        key = (phase.name, step)
        with self._lock:
            read = self._reads.pop(key, None) or self._readers.submit(
                find_batch, self._session.store, phase.longest, step, "page"
            )
            self._reads = dict([*self._reads.items(), (key, read)][-MOST_BATCHES:])
        is_kept = False
        try:
            batch = read.result()
            is_kept = batch.is_recorded
            return batch
        finally:
            if not is_kept:
                with self._lock:
                    self._reads.pop(key, None)

    def _data(self, phase: LoggedPhase, step: int, source: str) -> dict[str, Any]:
        from runtime.data.token_bytes import token_texts

        store, trained = self._session.store, phase.longest
        batch = self._batch(phase, step)
        odd = next((event for event in phase.events() if event.get("step") == step and "row" in event), None)
        places = _spread(batch.sources, None if odd is None else odd["row"], source)
        tokenizer = tokenizer_of(store, [trained]).tokenizer
        rows = [row._replace(texts=token_texts(tokenizer, row.tokens.tolist())) for row in batch.rows(store, places)]
        command = self._session.line("batch", f"{trained.name}@{step}", "--heat")
        data: dict[str, Any] = printable_data(
            {"phase": phase.name, **batch.data(), "rows": [_row_data(row, odd) for row in rows], "command": command}
        )
        return data


def _spread(sources: Sequence[str], first: int | None, source: str) -> list[int]:
    """Return the places of at most `MOST_ROWS` rows: `first`, then rows of each source in turn."""
    turns: Counter[str] = Counter()
    order = []
    for place, name in enumerate(sources):
        if source in ("", name):
            order.append((place != first, turns[name], name, place))
            turns[name] += 1
    return [place for *_, place in sorted(order)[:MOST_ROWS]]


def _row_data(row: Row, odd: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a row as JSON data, with its loss if an alarm or a spike of the step recorded it."""
    documents = [each | {"text": each["text"][:MOST_CHARACTERS]} for each in row.by_document()]
    is_odd = odd is not None and odd["row"] == row.place
    losses = {"loss": odd["row_loss"], "others": odd["median_row_loss"]} if odd is not None and is_odd else {}
    return row.data() | {"documents": documents} | losses
