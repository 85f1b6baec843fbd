"""Filter: documents in, those out that pass every rule of their source."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.step import Input, Runtime, StepContext, step
from runtime.text.filter_rules import Rule
from steps.documents import SAMPLES_PER_REASON, SHARD_FILE, DocumentsResult, DocumentsShard, documents_fields

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger


class FilterConfig(BaseModel, frozen=True, extra="forbid"):
    documents: Input[DocumentsResult]
    rules: tuple[Rule, ...] = Field(min_length=1)
    """Applied in this order; the first that fails names the reason."""
    shards_in_flight: Runtime[int] = 64


@step(policy="tracked", packages=("numpy", "pyarrow"))
def filter_documents(config: FilterConfig, context: StepContext) -> DocumentsResult:
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    shards = context.map(functools.partial(_filter_shard, config.rules), paths, in_flight=config.shards_in_flight)
    fields = documents_fields(
        context, shards, emptied="The rules drop the whole source: loosen the first of them, or leave the source out."
    )
    return DocumentsResult(**fields)


def _filter_shard(rules: tuple[Rule, ...], shard: str, path: str) -> DocumentsShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger

    ledger = DropLedger(SAMPLES_PER_REASON)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", _passing(shard, rules, ledger))
    return DocumentsShard(
        num_documents=num_documents, num_bytes=num_bytes, dropped=dict(ledger.counts), samples=tuple(ledger.samples)
    )


def _passing(shard: str, rules: tuple[Rule, ...], ledger: "DropLedger") -> "Iterator[Document]":
    from runtime.text.documents import read_batches
    from runtime.text.filters import rejections

    for batch in read_batches(shard):
        verdicts = rejections([document.text for document in batch], rules)
        for document, rejection in zip(batch, verdicts, strict=True):
            if rejection is None:
                yield document
            else:
                ledger.drop(rejection.reason, document_id=document.id, detail=rejection.detail, text=document.text)
