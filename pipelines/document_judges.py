"""Document judges: the verdicts of a step on its incoming documents, computed again from its config and inputs.

A judge reads the inputs of a step and writes nothing. Steps are deterministic, so its verdicts are those of the step.
"""

import bisect
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import fsspec
import numpy as np

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.store import Store
from pipelines.finished import finished
from pipelines.stored_documents import Numbered, StoredDocuments, open_documents
from runtime.text.array_files import num_rows, read_array, read_rows
from runtime.text.batch import TextBatch
from runtime.text.decontamination import Hit, ItemIndex
from runtime.text.filter_rules import QualityScore, Rule
from runtime.text.filters import Rejection, filtered
from runtime.text.quality import QualityModel, least_score
from steps.decontaminate import DecontaminateConfig
from steps.dedup import DROPS, REASONS
from steps.evaluation_items import EvaluationItemsResult
from steps.filter import FilterResult

WHOLE_ROWS = 1 << 16
"""Most drops of a shard that are read whole; the file of more drops is searched."""

MOST_ITEMS = 5
"""Most evaluation items that are shown beside a document."""


class Verdict(NamedTuple):
    """The fate of a document in a step."""

    text: str
    """The text as it is kept, or as it came in."""
    reason: str = ""
    """Empty for a kept document."""
    detail: str = ""
    rule: str = ""
    """The rule of a filter, by its place in the config."""
    hits: Sequence[Hit] = ()
    """Runs of words that the text shares with evaluation items."""
    kept: int | None = None
    """The cluster of a duplicate: the number of the document that is kept in its place."""


class Judge(Protocol):
    """The verdicts of a step."""

    def judge(self, documents: Sequence[Numbered]) -> list[Verdict]:
        """Return a verdict for each document; numbers ascend."""

    def beside(self, verdict: Verdict) -> Iterator[tuple[str, str]]:
        """Yield title and text of what explains a verdict: the document that is kept instead, or an evaluation item."""


class KeepAllJudge:
    """The judge of documents that no step drops."""

    def judge(self, documents: Sequence[Numbered]) -> list[Verdict]:
        return [Verdict(each.document.text) for each in documents]

    def beside(self, verdict: Verdict) -> Iterator[tuple[str, str]]:
        yield from ()


class FilterJudge(KeepAllJudge):
    """The judge of a filter, which need not have run."""

    def __init__(self, store: Store, step: Step, made: Step, documents: StoredDocuments) -> None:
        """Load the classifier, and replace a fraction to keep by its least score.

        The score comes from the record of `made`, the step without --set, or else from a sample of the documents.
        """
        self.quality = None
        for classifier in inputs_of(step, "quality_classifier"):
            trained = finished(store, classifier, "documents")
            self.quality = QualityModel.load(store.url(f"{trained.output_path}/{trained.result['classifier']}"))
        record = Records(store).find(made.key) if made.inputs == step.inputs else None
        self.rules = tuple(self._scored(rule, record, made, documents) for rule in step.config.rules)

    def _scored(self, rule: Rule, record: Record | None, made: Step, documents: StoredDocuments) -> Rule:
        if not isinstance(rule, QualityScore) or rule.keep_fraction is None or self.quality is None:
            return rule
        if record is not None and rule in made.config.rules:
            return QualityScore(min_score=FilterResult.model_validate(record.result).min_score)
        scores = self.quality.scores(TextBatch([each.document.text for each in documents.sample()]))
        return QualityScore(min_score=least_score(scores, rule.keep_fraction))

    def judge(self, documents: Sequence[Numbered]) -> list[Verdict]:
        texts = [each.document.text for each in documents]
        return [
            Verdict(text, result.reason, result.detail, self.rule_name(result.rule))
            if isinstance(result, Rejection)
            else Verdict(result)
            for text, result in zip(texts, filtered(texts, self.rules, self.quality), strict=True)
        ]

    def rule_name(self, place: int) -> str:
        """Return how `--set` and a reader find a rule."""
        return f"rules.{place} {type(self.rules[place]).__name__}"


class DedupJudge(KeepAllJudge):
    """The judge of a deduplication, by the drops that it has written."""

    def __init__(self, store: Store, step: Step, documents: StoredDocuments) -> None:
        self._folder = store.url(finished(store, step, "documents").output_path)
        self._own, self._earlier = documents, [open_documents(store, each) for each in inputs_of(step, "against")]
        self._num_earlier = sum(map(len, self._earlier))

    def judge(self, documents: Sequence[Numbered]) -> list[Verdict]:
        found: dict[int, tuple[str, int]] = {}
        for shard, group in itertools.groupby((each.number for each in documents), self._own.shard_of):
            numbers, start = list(group), int(self._own.starts[shard])
            path = f"{self._folder}/{DROPS.format(shard)}"
            drops = _rows_between(path, numbers[0] - start, numbers[-1] + 1 - start)
            found |= {start + row: (REASONS[reason], kept) for row, reason, kept in drops.tolist()}
        verdicts = []
        for number, document in documents:
            reason, kept = found.get(number, ("", None))
            verdicts.append(Verdict(document.text, reason, kept=kept))
        return verdicts

    def beside(self, verdict: Verdict) -> Iterator[tuple[str, str]]:
        if verdict.kept is not None:
            kept = self._kept(verdict.kept)
            yield f"kept instead: {kept.id} of {kept.source}", kept.text

    def _kept(self, number: int) -> Any:
        for source in self._earlier:
            if number < len(source):
                return source.document(number)
            number -= len(source)
        return self._own.document(number)


class DecontaminationJudge(KeepAllJudge):
    """The judge of a decontamination, which need not have run."""

    def __init__(self, store: Store, step: Step) -> None:
        config: DecontaminateConfig = step.config
        (items,) = inputs_of(step, "evaluation_items")
        record = finished(store, items, "documents")
        self._items: EvaluationItemsResult = items.kind.result_type.model_validate(record.result)
        self._folder, self._drops = store.url(record.output_path), config.action == "drop"
        self._index = ItemIndex(f"{self._folder}/{self._items.ngram_index}")

    def judge(self, documents: Sequence[Numbered]) -> list[Verdict]:
        hits: dict[int, list[Hit]] = {}
        for hit in self._index.hits([each.document.text for each in documents]):
            hits.setdefault(hit.document, []).append(hit)
        return [self._verdict(each.document.text, hits.get(row, [])) for row, each in enumerate(documents)]

    def _verdict(self, text: str, hits: Sequence[Hit]) -> Verdict:
        if not hits or not self._drops:
            return Verdict(text, hits=hits)
        first = hits[0]
        detail = f"{first.num_words} words of item {first.item}, {first.field}"
        return Verdict(text, f"overlaps with {first.task}", detail, hits=hits)

    def beside(self, verdict: Verdict) -> Iterator[tuple[str, str]]:
        for task, item in itertools.islice(dict.fromkeys((hit.task, hit.item) for hit in verdict.hits), MOST_ITEMS):
            with fsspec.open(f"{self._folder}/{self._items.files[task]}", "rb") as lines:
                row = json.loads(next(line for number, line in enumerate(lines) if number == item))
            yield f"{task}, item {item}", json.dumps(row, ensure_ascii=False, indent=1)


def inputs_of(step: Step, field: str) -> list[Step]:
    """Return the steps that a field of the config reads."""
    return [given.step for name, given in step.inputs if name == field or name.startswith(f"{field}.")]


def _rows_between(path: str, first: int, after: int) -> np.ndarray:
    """Return rows with a first column from `first` to before `after`; the file is sorted by this column."""
    count = num_rows(path)
    if count <= WHOLE_ROWS:
        rows = _whole(path)
        return rows[slice(*np.searchsorted(rows[:, 0], (first, after)))]
    begin, end = (
        bisect.bisect_left(range(count), row, key=lambda place: int(read_rows(path, np.array([place]))[0, 0]))
        for row in (first, after)
    )
    return read_rows(path, np.arange(begin, end))


@functools.lru_cache(maxsize=4)
def _whole(path: str) -> np.ndarray:
    """Return the rows of a file of an output; such files never change."""
    return read_array(path)
