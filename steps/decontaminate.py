"""Decontaminate: documents in, documents out; drops those that share a long run of words with an evaluation item."""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from marin_dag.graph.step import Input, StepContext, step
from steps.documents import DocumentsConfig, DocumentsResult, DocumentsShard, documents_fields, write_shard
from steps.evaluation_items import EvaluationItemsResult

if TYPE_CHECKING:
    from runtime.text.decontamination import Hit, ItemIndex
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger

HITS_FILE = "hits.jsonl"


class DecontaminateConfig(DocumentsConfig, frozen=True, extra="forbid"):
    evaluation_items: Input[EvaluationItemsResult]
    action: Literal["drop", "report"] = "drop"
    """"report" keeps every document, for corpora that a recipe uses as published."""


class DecontaminateResult(DocumentsResult, frozen=True, extra="forbid"):
    hits: str
    """JSON lines, one per hit and item: document id, task, item (row of its file), field, byte span in the document,
    words."""
    num_hits: int
    hits_by_task: dict[str, int]


class DecontaminatedShard(DocumentsShard, frozen=True, extra="forbid"):
    hits_by_task: dict[str, int]


@step(policy="tracked", packages=("numpy", "pyarrow"))
def decontaminate(config: DecontaminateConfig, context: StepContext) -> DecontaminateResult:
    import fsspec

    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    index = config.evaluation_items.join(config.evaluation_items.result.ngram_index)
    write = functools.partial(_decontaminate_shard, index, config.action)
    shards = context.map(write, paths, in_flight=config.shards_in_flight)
    fields = documents_fields(
        context,
        shards,
        emptied="Every document overlaps with an evaluation item: the source is an evaluation set.",
        warn_above_share=config.warn_above_share,
    )
    hits_by_task: Counter[str] = Counter()
    with fsspec.open(f"{context.output_path}/{HITS_FILE}", "wb", auto_mkdir=True) as report:
        for number, shard in enumerate(shards):
            hits_by_task.update(shard.hits_by_task)
            with fsspec.open(f"{context.output_path}/shards/{number:05d}/{HITS_FILE}", "rb") as file:
                report.write(file.read())
    return DecontaminateResult(
        **fields, hits=HITS_FILE, num_hits=hits_by_task.total(), hits_by_task=dict(sorted(hits_by_task.items()))
    )


def _decontaminate_shard(index_folder: str, action: str, shard: str, path: str) -> DecontaminatedShard:
    import fsspec

    from runtime.text.decontamination import ItemIndex

    hits: list[dict[str, str | int]] = []
    clean = functools.partial(_clean, shard, ItemIndex(index_folder), hits, action == "drop")
    fields, _ = write_shard(path, clean)
    with fsspec.open(f"{path}/{HITS_FILE}", "wb", auto_mkdir=True) as file:
        file.writelines(json.dumps(hit, ensure_ascii=False).encode() + b"\n" for hit in hits)
    hits_by_task = dict(Counter(str(hit["task"]) for hit in hits))
    return DecontaminatedShard(**fields, hits_by_task=hits_by_task)


def _clean(
    shard: str, index: "ItemIndex", hits: list[dict[str, str | int]], drops: bool, ledger: "DropLedger"
) -> "Iterator[Document]":
    from runtime.text.documents import read_batches

    for batch in read_batches(shard):
        first_hits: dict[int, Hit] = {}
        for hit in index.hits([document.text for document in batch]):
            first_hits.setdefault(hit.document, hit)
            hits.append({**hit._asdict(), "document": batch[hit.document].id})
        for row, document in enumerate(batch):
            if row in first_hits and drops:
                hit = first_hits[row]
                detail = f"{hit.num_words} words of item {hit.item}, {hit.field}"
                ledger.drop_document(f"overlaps with {hit.task}", document, detail, excerpt=hit.excerpt)
            else:
                yield document
