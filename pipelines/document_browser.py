"""Document browser: a step's documents with their verdicts, and a sample that shows what other thresholds drop."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marin_dag.errors import UserError
from pipelines.document_judges import FilterJudge, KeepAllJudge, Verdict
from pipelines.judged_documents import Judged
from pipelines.stored_documents import Numbered
from runtime.report.documents_page import marked
from runtime.report.markup import printable
from runtime.text.filters import measured

JUDGED_TOGETHER = 256
READ_CHARACTERS = 64 << 20
"""Characters of text after which a search pauses."""
EXCERPT_CHARACTERS = 160


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

    def matches_verdict(self, verdict: Verdict) -> bool:
        """Return whether a document with this verdict is wanted."""
        is_wanted = self.is_dropped is None or self.is_dropped == bool(verdict.reason)
        return is_wanted and self.reason.casefold() in verdict.reason.casefold()


@dataclasses.dataclass(frozen=True)
class Found:
    """A page of documents."""

    documents: Sequence[tuple[Numbered, Verdict]]
    after: int
    """The number of the first document that was not looked at."""
    total: int

    @property
    def next(self) -> int | None:
        """Where the next page begins; None at the end."""
        return self.after if self.after < self.total else None


def browse(judged: Judged, query: Query) -> Found:
    """Return the first documents from `query.first` on that a query wants.

    Raises:
        UserError: the source has no document of this number, or a shard is damaged.
    """
    if query.is_dropped and type(judged.judge) is KeepAllJudge:
        return _sampled(judged, query)
    total = len(judged.documents)
    if not 0 <= query.first < max(total, 1):
        raise UserError(
            f"--after {query.first}: {judged.documents.name} has documents 0 to {total - 1:,}; name one of them."
        )
    found: list[tuple[Numbered, Verdict]] = []
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
    return {
        "documents": [
            {
                "number": each.number,
                "id": printable(each.document.id),
                "source": printable(each.document.source),
                "metadata": printable(each.document.metadata),
                "text": marked(verdict.text, _spans(verdict)),
                "bytesCut": 0 if verdict.reason else _size(each.document.text) - _size(verdict.text),
                "reason": printable(verdict.reason),
                "detail": printable(verdict.detail),
                "rule": verdict.rule,
                "cluster": verdict.kept,
                "beside": [[printable(title), marked(text, ())] for title, text in judged.judge.beside(verdict)],
            }
            for each, verdict in found.documents
        ],
        "next": found.next,
        "total": found.total,
    }


def _size(text: str) -> int:
    return len(text.encode())


def _spans(verdict: Verdict) -> list[tuple[int, int, str]]:
    return [(hit.start, hit.end, f"{hit.task}, item {hit.item}, {hit.field}") for hit in verdict.hits]


def sample_data(judged: Judged) -> dict[str, Any] | None:
    """Return a filter's measures of a sample, for any threshold to be tried; None for other steps."""
    if not isinstance(judged.judge, FilterJudge):
        return None
    judge, sample = judged.judge, judged.documents.sample()
    texts = [each.document.text for each in sample]
    return {
        "documents": [[each.number, printable(each.document.id), marked(text[:EXCERPT_CHARACTERS], ())[0][0]]
                      for each, text in zip(sample, texts, strict=True)],
        "findings": [
            {
                "rule": judge.rule_name(place),
                "reason": finding.reason,
                "isLeast": finding.is_least,
                "limit": float(finding.limit),
                "values": [value if np.isfinite(value) else None for value in finding.values.tolist()],
            }
            for place, finding in measured(texts, judge.rules, judge.quality)
        ],
        "total": len(judged.documents),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A filter as the recipe has it beside the same filter with other settings, over a sample."""

    num_documents: int
    before: Mapping[str, int]
    """Drops by reason."""
    after: Mapping[str, int]
    changed: Sequence[tuple[Numbered, Verdict, Verdict]]
    """Documents that only one of both keeps, with both verdicts."""


def compare(before: Judged, after: Judged) -> Comparison:
    """Return what other settings change."""
    sample = after.documents.sample()
    verdicts = [each.judge.judge(sample) for each in (before, after)]
    drops = [Counter(verdict.reason for verdict in side if verdict.reason) for side in verdicts]
    pairs = zip(sample, *verdicts, strict=True)
    changed = [(each, was, now) for each, was, now in pairs if bool(was.reason) != bool(now.reason)]
    return Comparison(len(sample), drops[0], drops[1], changed)
