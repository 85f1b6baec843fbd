"""Dedup spans: documents in, the same out without three-sentence spans that occur elsewhere in the corpus.

A removed sentence survives in another document that stays. A document with too little text left is therefore dropped
only if no other document lost a sentence for it, and later sources lose none for a dropped document.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.text.span_rule import RepeatedSpans
from steps.documents import SAMPLES_PER_REASON, SHARD_FILE, DocumentsResult, documents_fields, shard_fields
from steps.edited_documents import EditedDocumentsResult, EditedDocumentsShard, Edits, edited_fields

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger

DROPPED_ROWS_FILE = "dropped-rows.npy"
TOO_LITTLE = "repeated spans: too little is left"


class DedupSpansConfig(BaseModel, frozen=True, extra="forbid"):
    """C4's rule (arXiv:1910.10683, section 2.2) across all shards and earlier sources; see `runtime.text.spans`."""

    documents: Input[DocumentsResult]
    against: tuple[Input["DedupSpansResult"], ...] = ()
    """Earlier sources, first to last: their spans are removed here."""
    spans: RepeatedSpans = RepeatedSpans()
    shards_in_flight: Runtime[int] = 64
    keys_per_task: int = Field(default=8_000_000, ge=1)
    """How many spans one task compares, at about 80 bytes each."""


class DedupSpansResult(EditedDocumentsResult, frozen=True, extra="forbid"):
    spans: tuple[str, ...]
    """Folders of the spans of the incoming documents, one a shard; relative to the step's output."""
    dropped_spans: tuple[str | None, ...]
    """The file, for each folder, of spans of dropped documents; None without such documents."""
    num_keys: int
    num_held: int
    """Edited documents with fewer sentences than may be left, which stay because others lost these sentences."""
    num_sentences_removed: int
    """Sentences of documents that stayed."""


class SpanShard(BaseModel, frozen=True, extra="forbid"):
    num_sentences: int
    num_keys: int


class EditedShard(EditedDocumentsShard, frozen=True, extra="forbid"):
    num_held: int
    num_sentences_removed: int


def _check(config: DedupSpansConfig) -> None:
    for earlier in config.against:
        its = earlier.config_of(DedupSpansConfig)
        if its is not None and its.spans.min_words != config.spans.min_words:
            raise ValueError(
                f"spans.min_words differs from that of {earlier.name}, which it is compared with. Give both the same."
            )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def dedup_spans(config: DedupSpansConfig, context: StepContext) -> DedupSpansResult:
    """Write spans by shard, repeats by range of keys, then the shards without them."""
    from runtime.text.key_files import ranges

    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    in_flight = config.shards_in_flight
    found = context.map(functools.partial(_find_spans, config.spans), paths, in_flight=in_flight, name="spans")
    own = tuple(f"spans/{index:05d}" for index in range(len(paths)))
    earlier = [
        (source.join(folder), None if dropped is None else source.join(dropped))
        for source in config.against
        for folder, dropped in zip(source.result.spans, source.result.dropped_spans, strict=True)
    ]
    num_keys = sum(shard.num_keys for shard in found)
    num_compared = num_keys + sum(source.result.num_keys for source in config.against)
    folders = [*earlier, *((f"{context.output_path}/{folder}", None) for folder in own)]
    compare = functools.partial(_compare, folders, len(earlier))
    tasks = [list(buckets) for buckets in ranges(num_compared, config.keys_per_task)]
    context.map(compare, tasks, in_flight=in_flight, name="repeats")
    parts = [f"{context.output_path}/repeats/{number:05d}" for number in range(len(tasks))]
    edit = functools.partial(_edit_shard, parts, len(paths), config.spans.min_sentences_left)
    items = [(path, f"{context.output_path}/{own[index]}", index) for index, path in enumerate(paths)]
    shards = context.map(edit, items, in_flight=in_flight)
    fields = documents_fields(context, shards, emptied="Earlier sources have all of its texts; leave the source out.")
    return DedupSpansResult(
        **fields,
        **edited_fields(context, shards),
        spans=own,
        num_keys=num_keys,
        dropped_spans=tuple(
            f"shards/{index:05d}/{DROPPED_ROWS_FILE}" if shard.dropped else None for index, shard in enumerate(shards)
        ),
        num_held=sum(shard.num_held for shard in shards),
        num_sentences_removed=sum(shard.num_sentences_removed for shard in shards),
    )


def _find_spans(rule: RepeatedSpans, shard: str, path: str) -> SpanShard:
    from runtime.text.span_files import write_spans

    return SpanShard(**write_spans(shard, path, rule)._asdict())


def _compare(folders: list[tuple[str, str | None]], num_earlier: int, buckets: list[int], path: str) -> dict[str, int]:
    from runtime.text.key_files import Buckets
    from runtime.text.span_files import SpanFolder, write_repeats

    shards = [SpanFolder(*folder) for folder in folders]
    return {"repeats": write_repeats(path, shards, num_earlier, Buckets(*buckets))}


def _edit_shard(parts: list[str], num_shards: int, min_left: int, item: tuple[str, str, int], path: str) -> EditedShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger
    from runtime.text.span_files import write_dropped

    ledger, edits = DropLedger(SAMPLES_PER_REASON), _SpanEdits()
    left = _left(item, parts, num_shards, min_left, ledger, edits)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", left)
    if edits.dropped_rows:
        write_dropped(f"{path}/{DROPPED_ROWS_FILE}", edits.dropped_rows)
    return EditedShard(
        **shard_fields(path, num_documents, num_bytes, ledger),
        **edits.shard_fields(path),
        num_held=edits.num_held,
        num_sentences_removed=edits.num_sentences,
    )


@dataclasses.dataclass
class _SpanEdits(Edits):
    num_held: int = 0
    num_sentences: int = 0
    dropped_rows: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Sentences of dropped documents."""


def _left(
    item: tuple[str, str, int],
    parts: list[str],
    num_shards: int,
    min_left: int,
    ledger: "DropLedger",
    edits: _SpanEdits,
) -> "Iterator[Document]":
    from runtime.text.span_files import Edited, edited_documents

    shard, folder, number = item
    for found in edited_documents(shard, folder, parts, number=number, num_shards=num_shards):
        if not isinstance(found, Edited):
            yield found
        elif found.num_left < min_left and not found.is_held:
            edits.dropped_rows.append(found.rows)
            detail = f"{found.num_left} sentences of {found.num_left + len(found.removed)}, at least {min_left}"
            ledger.drop_document(TOO_LITTLE, found.document, detail)
        else:
            edits.count(found.document.text, found.text)
            edits.num_held += found.num_left < min_left
            edits.num_sentences += len(found.removed)
            if edits.wants_samples:
                edits.add_sample(found.document.id, removed=found.removed, num_left=found.num_left)
            yield found.document._replace(text=found.text)
