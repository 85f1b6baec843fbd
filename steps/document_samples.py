"""Samples of documents, drawn shard by shard by workers; they depend on ids and sizes alone."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel

from marin_dag.graph.step import Input, StepContext
from steps.documents import SHARD_FILE, DocumentsResult

if TYPE_CHECKING:
    from runtime.text.documents import Document

FOLDER = "samples"


class SampledShard(BaseModel, frozen=True, extra="forbid"):
    """The sampled documents of one shard, which lie in its folder under `SHARD_FILE`."""

    keys: tuple[int, ...]
    sizes: tuple[int, ...]


def sample_documents(
    context: StepContext, groups: Mapping[str, Sequence[Input[DocumentsResult]]], num_bytes: int, *, in_flight: int
) -> "Iterator[tuple[str, Document]]":
    """Yield group and document: of each group those with the lowest `sample_key`, up to `num_bytes`, in document order.

    Workers write the samples of all shards before the first document is yielded.
    """
    from runtime.text.documents import key_limit, last_key, read_documents, sample_key

    limits = {
        name: key_limit(
            num_bytes,
            num_bytes=sum(documents.result.num_bytes for documents in inputs),
            num_documents=sum(documents.result.num_documents for documents in inputs),
        )
        for name, inputs in groups.items()
    }
    items = [
        (name, documents.join(shard), limits[name])
        for name, inputs in groups.items()
        for documents in inputs
        for shard in documents.result.shards
    ]
    found = context.map(functools.partial(_sample_shard, num_bytes), items, in_flight=in_flight, name=FOLDER)
    for name in groups:
        shards = [(place, shard) for place, shard in enumerate(found) if items[place][0] == name]
        pairs = [pair for _, shard in shards for pair in zip(shard.keys, shard.sizes, strict=True)]
        last = last_key(pairs, num_bytes)
        taken = [place for place, shard in shards if min(shard.keys, default=last + 1) <= last]
        for document in read_documents(f"{context.output_path}/{FOLDER}/{place:05d}/{SHARD_FILE}" for place in taken):
            if sample_key(document) <= last:
                yield name, document


def _sample_shard(num_bytes: int, item: tuple[str, str, int], path: str) -> SampledShard:
    from runtime.text.documents import read_documents, sample_key, sampled, size_of, write_documents

    _, shard, below = item
    documents = sampled(read_documents([shard]), below=below, num_bytes=num_bytes)
    write_documents(f"{path}/{SHARD_FILE}", documents)
    return SampledShard(keys=tuple(map(sample_key, documents)), sizes=tuple(map(size_of, documents)))
