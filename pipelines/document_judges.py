"""Document judges: the verdicts of a step on its incoming documents, computed again from its config and inputs.

A judge reads the inputs of a step and writes nothing. Steps are deterministic, so its verdicts are those of the step.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fsspec
import numpy as np

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.store import Store
from pipelines.finished import finished
from pipelines.stored_documents import Numbered, StoredDocuments, open_documents
from runtime.text.array_files import read_array
from runtime.text.batch import TextBatch
from runtime.text.decontamination import Hit, ItemIndex
from runtime.text.documents import Document
from runtime.text.drops import read_samples
from runtime.text.filter_rules import QualityScore, Rule
from runtime.text.filters import Rejection, filtered
from runtime.text.quality import QualityModel, least_score
from steps.decontaminate import DecontaminateConfig
from steps.dedup import DROPS, REASONS, DedupConfig
from steps.documents import DocumentsConfig, DocumentsResult
from steps.evaluation_items import EvaluationItemsResult
from steps.filter import FilterConfig, FilterResult

MOST_ITEMS = 5
"""Most evaluation items that are shown beside a document."""


class DocumentVerdict(NamedTuple):
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


class Judge:
    """The judge of documents that no step drops, and the base of all judges."""

    def judge(self, documents: Sequence[Numbered]) -> list[DocumentVerdict]:
        """Return a verdict for each document; numbers ascend."""
        return [DocumentVerdict(each.document.text) for each in documents]

    def beside(self, verdict: DocumentVerdict) -> Iterator[tuple[str, str]]:
        """Yield title and text of what explains a verdict: the document that is kept instead, or an evaluation item."""
        yield from ()


class FilterJudge(Judge):
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

    def judge(self, documents: Sequence[Numbered]) -> list[DocumentVerdict]:
        texts = [each.document.text for each in documents]
        return [
            DocumentVerdict(text, result.reason, result.detail, self.rule_name(result.rule))
            if isinstance(result, Rejection)
            else DocumentVerdict(result)
            for text, result in zip(texts, filtered(texts, self.rules, self.quality), strict=True)
        ]

    def rule_name(self, place: int) -> str:
        """Return how `--set` and a reader find a rule."""
        return f"rules.{place} {type(self.rules[place]).__name__}"


class DedupJudge(Judge):
    """The judge of a deduplication, by the drops that it has written."""

    def __init__(self, store: Store, step: Step, documents: StoredDocuments) -> None:
        self._folder = store.url(finished(store, step, "documents").output_path)
        self._own, self._earlier = documents, [open_documents(store, each) for each in inputs_of(step, "against")]
        self._num_earlier = sum(map(len, self._earlier))

    def judge(self, documents: Sequence[Numbered]) -> list[DocumentVerdict]:
        return [self._verdict(number, document.text) for number, document in documents]

    def _verdict(self, number: int, text: str) -> DocumentVerdict:
        shard = self._own.shard_of(number)
        row = number - int(self._own.starts[shard])
        drops = _drops_of(f"{self._folder}/{DROPS.format(shard)}")
        place = int(np.searchsorted(drops[:, 0], row))  # the file is sorted by row
        if place == len(drops) or drops[place, 0] != row:
            return DocumentVerdict(text)
        # Outputs of older versions do not name the kept document.
        _, reason, *kept = drops[place].tolist()
        return DocumentVerdict(text, REASONS[reason], kept=next(iter(kept), None))

    def beside(self, verdict: DocumentVerdict) -> Iterator[tuple[str, str]]:
        if verdict.kept is not None:
            kept = self._kept(verdict.kept)
            yield f"kept instead: {kept.id} of {kept.source}", kept.text

    def _kept(self, number: int) -> Document:
        for source in self._earlier:
            if number < len(source):
                return source.document(number)
            number -= len(source)
        return self._own.document(number)


class DecontaminationJudge(Judge):
    """The judge of a decontamination, which need not have run."""

    def __init__(self, store: Store, step: Step) -> None:
        config: DecontaminateConfig = step.config
        (items,) = inputs_of(step, "evaluation_items")
        record = finished(store, items, "documents")
        self._items: EvaluationItemsResult = items.kind.result_type.model_validate(record.result)
        self._folder, self._drops = store.url(record.output_path), config.action == "drop"
        self._index = ItemIndex(f"{self._folder}/{self._items.ngram_index}")

    def judge(self, documents: Sequence[Numbered]) -> list[DocumentVerdict]:
        hits: dict[int, list[Hit]] = {}
        for hit in self._index.hits([each.document.text for each in documents]):
            hits.setdefault(hit.document, []).append(hit)
        return [self._verdict(each.document.text, hits.get(row, [])) for row, each in enumerate(documents)]

    def _verdict(self, text: str, hits: Sequence[Hit]) -> DocumentVerdict:
        if not hits or not self._drops:
            return DocumentVerdict(text, hits=hits)
        first = hits[0]
        detail = f"{first.num_words} words of item {first.item}, {first.field}"
        return DocumentVerdict(text, f"overlaps with {first.task}", detail, hits=hits)

    def beside(self, verdict: DocumentVerdict) -> Iterator[tuple[str, str]]:
        for task, item in itertools.islice(dict.fromkeys((hit.task, hit.item) for hit in verdict.hits), MOST_ITEMS):
            with fsspec.open(f"{self._folder}/{self._items.files[task]}", "rb") as lines:
                row = json.loads(next(line for number, line in enumerate(lines) if number == item))
            yield f"{task}, item {item}", json.dumps(row, ensure_ascii=False, indent=1)


def inputs_of(step: Step, field: str) -> list[Step]:
    """Return the steps that a field of the config reads."""
    return [given.step for name, given in step.inputs if name == field or name.startswith(f"{field}.")]


@functools.lru_cache(maxsize=4)
def _drops_of(path: str) -> np.ndarray:
    """Return the rows of a file of drops; such files never change."""
    return read_array(path)


@dataclasses.dataclass(frozen=True)
class Judged:
    """The incoming documents of a step, and its judge."""

    step: Step
    documents: StoredDocuments
    judge: Judge
    samples: Sequence[tuple[Numbered, DocumentVerdict]] = ()
    """A few drops of each reason by a step that reads no documents, such as pages without text."""


def open_judged(store: Store, step: Step, made: Step | None = None) -> Judged:
    """Return the documents that a step reads, or writes if it reads none, with its judge.

    `made` is the step without --set, if `step` is a variant of it.

    Raises:
        UserError: no documents belong to the step, or a step that is needed is not done.
    """
    config = step.config
    if not isinstance(config, DocumentsConfig):
        is_own = issubclass(step.kind.result_type, DocumentsResult)
        documents = open_documents(store, step if is_own else _documents_of(step))
        return Judged(step, documents, Judge(), _samples(documents) if is_own else ())
    documents = open_documents(store, _documents_of(step))
    judge: Judge
    match config:
        case FilterConfig():
            judge = FilterJudge(store, step, made or step, documents)
        case DedupConfig():
            judge = DedupJudge(store, step, documents)
        case DecontaminateConfig():
            judge = DecontaminationJudge(store, step)
        case _:
            raise TypeError(f"{step.name}: no judge for {type(config).__name__}; add one to open_judged.")
    return Judged(step, documents, judge)


def has_documents(step: Step) -> bool:
    """Return whether a step gives documents or reads those of one step."""
    return issubclass(step.kind.result_type, DocumentsResult) or bool(inputs_of(step, "documents"))


def _samples(documents: StoredDocuments) -> list[tuple[Numbered, DocumentVerdict]]:
    path = documents.result.dropped_samples
    rows = [] if path is None else read_samples(documents.url(path))
    return [
        (
            Numbered(number, Document(row["id"], row["excerpt"], "")),
            DocumentVerdict(row["excerpt"], row["reason"], row["detail"]),
        )
        for number, row in enumerate(rows)
    ]


def _documents_of(step: Step) -> Step:
    for given in inputs_of(step, "documents"):
        return given
    raise UserError(
        f"documents: {step.name} ({step.kind.name}) neither gives documents nor reads those of one step. Name a step "
        "of extract, filter, dedup, decontaminate or tokenize; `ls` lists all."
    )
