"""Live documents: the documents of a graph's steps for its page."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.document_browser import Query, browse, page_data, sample_data
from pipelines.judged_documents import Judged, has_documents, open_judged

LIVE_ROWS = 20


class LiveDocuments:
    """The documents of a graph for its page; several threads may ask."""

    def __init__(self, store: Store, graph: Graph) -> None:
        self.steps: Sequence[str] = [step.name for step in graph.steps if has_documents(step)]
        self._store, self._graph = store, graph
        self._lock = threading.Lock()
        self._opened: dict[str, Judged] = {}
        """Finished steps, whose outputs do not change."""

    def data(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a part of a step's documents: "kept", "dropped" or "sample"."""
        name, part, first = (query.get(field, "") for field in ("step", "part", "first"))
        if name not in self.steps or part not in ("kept", "dropped", "sample") or not first.isdecimal():
            raise UserError(
                f"page: no documents of step {name!r}, part {part!r}, from {first!r} on; load the page again."
            )
        with self._lock:
            judged = self._judged(self._graph.step(name))
            if part == "sample":
                return {"sample": sample_data(judged)}
            wanted = Query(
                search=query.get("search", ""),
                identifier=query.get("id", ""),
                source=query.get("source", ""),
                reason=query.get("reason", ""),
                first=int(first),
                rows=LIVE_ROWS,
            )
            return page_data(judged, browse(judged, wanted.of(is_dropped=part == "dropped")))

    def _judged(self, step: Step) -> Judged:
        if step.name not in self._opened:
            judged = open_judged(self._store, step)
            if Records(self._store).find(step.key) is None:
                return judged
            self._opened[step.name] = judged
        return self._opened[step.name]
