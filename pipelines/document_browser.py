"""Document browser: a step's documents with their verdicts, and a sample that shows what other thresholds drop."""

import dataclasses
import reprlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.document_judges import DocumentVerdict, FilterJudge, Judge, Judged, has_documents, open_judged
from pipelines.stored_documents import Numbered
from runtime.report.markup import marked, printable_data
from runtime.text.filters import measured

JUDGED_TOGETHER = 256
READ_CHARACTERS = 64 << 20
"""Characters of text after which a search pauses."""
EXCERPT_CHARACTERS = 160
LIVE_ROWS = 20
MOST_DIGITS = 18
"""Digits of a document's number, which is a 64-bit integer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """The documents that are wanted; an empty field wants all."""

    search: str = ""
    """Words that the text contains, in any order and case."""
    identifier: str = ""
    """A part of the id."""
    source: str = ""
    reason: str = ""
    """A part of the reason, in any case."""
    is_dropped: bool | None = None
    first: int = 0
    rows: int = 20

    def of(self, *, is_dropped: bool) -> "Query":
        """Return this query for kept or for dropped documents alone; kept documents have no reason to search."""
        return dataclasses.replace(self, is_dropped=is_dropped, reason=self.reason if is_dropped else "")

    def matches(self, each: Numbered) -> bool:
        """Return whether a document is wanted, before it is judged."""
        document = each.document
        if self.identifier not in document.id or self.source not in ("", document.source):
            return False
        text = document.text.casefold() if self.search else ""
        return all(word in text for word in self.search.casefold().split())

    def matches_verdict(self, verdict: DocumentVerdict) -> bool:
        """Return whether a document with this verdict is wanted."""
        is_wanted = self.is_dropped is None or self.is_dropped == bool(verdict.reason)
        return is_wanted and self.reason.casefold() in verdict.reason.casefold()


class Found(NamedTuple):
    """A page of documents."""

    documents: Sequence[tuple[Numbered, DocumentVerdict]]
    after: int
    """The number of the first document that was not looked at."""
    total: int

    @property
    def next(self) -> int | None:
        """The number of the document that the next page begins with; None at the end."""
        return self.after if self.after < self.total else None


def browse(judged: Judged, query: Query) -> Found:
    """Return the first documents from `query.first` on that a query wants.

    Raises:
        UserError: the source has no document of this number, or a shard is damaged.
    """
    if query.is_dropped and type(judged.judge) is Judge:
        return _sampled(judged, query)
    total = len(judged.documents)
    if not 0 <= query.first < max(total, 1):
        raise UserError(
            f"--after {query.first}: {judged.documents.name} has documents 0 to {total - 1:,}; name one of them."
        )
    found: list[tuple[Numbered, DocumentVerdict]] = []
    num_characters = 0
    for batch in _slices(judged, query.first):
        wanted = [each for each in batch if query.matches(each)]
        for each, verdict in zip(wanted, judged.judge.judge(wanted) if wanted else (), strict=True):
            if query.matches_verdict(verdict):
                found.append((each, verdict))
                if len(found) == query.rows:
                    return Found(found, each.number + 1, total)
        num_characters += sum(len(each.document.text) for each in batch)
        if num_characters >= READ_CHARACTERS:
            return Found(found, batch[-1].number + 1, total)
    return Found(found, total, total)


def _sampled(judged: Judged, query: Query) -> Found:
    total = len(judged.samples)
    wanted = [(each, v) for each, v in judged.samples if query.matches(each) and query.matches_verdict(v)]
    rows = [pair for pair in wanted if pair[0].number >= query.first]
    return Found(rows[: query.rows], rows[query.rows][0].number if len(rows) > query.rows else total, total)


def _slices(judged: Judged, first: int) -> Iterator[list[Numbered]]:
    for group in judged.documents.read(first):
        for begin in range(0, len(group), JUDGED_TOGETHER):
            yield group[begin : begin + JUDGED_TOGETHER]


def page_data(judged: Judged, found: Found) -> dict[str, Any]:
    """Return a page of documents as JSON data, with all that explains their verdicts."""
    documents = [_document_data(judged, each, verdict) for each, verdict in found.documents]
    data: dict[str, Any] = printable_data({"documents": documents, "next": found.next, "total": found.total})
    return data


def _document_data(judged: Judged, each: Numbered, verdict: DocumentVerdict) -> dict[str, Any]:
    document = each.document
    spans = [(hit.start, hit.end, f"{hit.task}, item {hit.item}, {hit.field}") for hit in verdict.hits]
    return {
        "number": each.number,
        "id": document.id,
        "source": document.source,
        "metadata": document.metadata,
        "text": marked(verdict.text, spans),
        "bytesCut": 0 if verdict.reason else _size(document.text) - _size(verdict.text),
        "reason": verdict.reason,
        "detail": verdict.detail,
        "rule": verdict.rule,
        "cluster": verdict.kept,
        "beside": [[title, marked(text, ())] for title, text in judged.judge.beside(verdict)],
    }


def _size(text: str) -> int:
    return len(text.encode())


def sample_data(judged: Judged) -> dict[str, Any] | None:
    """Return a filter's measures of a sample, for any threshold to be tried; None for other steps."""
    if not isinstance(judged.judge, FilterJudge):
        return None
    judge, sample = judged.judge, judged.documents.sample()
    texts = [each.document.text for each in sample]
    findings = [
        {
            "rule": judge.rule_name(place),
            "reason": finding.reason,
            "isLeast": finding.is_least,
            "limit": float(finding.limit),
            "values": [value if np.isfinite(value) else None for value in finding.values.tolist()],
        }
        for place, finding in measured(texts, judge.rules, judge.quality)
    ]
    documents = [[each.number, each.document.id, each.document.text[:EXCERPT_CHARACTERS]] for each in sample]
    data: dict[str, Any] = printable_data(
        {"documents": documents, "findings": findings, "total": len(judged.documents)}
    )
    return data


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
        is_number = first.isdecimal() and len(first) <= MOST_DIGITS
        if name not in self.steps or part not in ("kept", "dropped", "sample") or not is_number:
            step, of_step, begin = map(reprlib.repr, (name, part, first))
            raise UserError(f"page: no documents of step {step}, part {of_step}, from {begin} on; load the page again.")
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
