"""Dedup: documents in, one of each cluster of exact or near duplicates out."""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel

from marin_dag.step import Input, Runtime, StepContext, step
from runtime.text.minhash import MinHash
from steps.documents import SAMPLES_PER_REASON, SHARD_FILE, DocumentsResult, DocumentsShard, documents_fields

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger

CLUSTERS_FILE = "clusters.jsonl"
EXACT, NEAR = "exact duplicate", "near duplicate"


class DedupConfig(BaseModel, frozen=True, extra="forbid"):
    documents: Input[DocumentsResult]
    minhash: MinHash = MinHash()
    shards_in_flight: Runtime[int] = 64


class DedupResult(DocumentsResult, frozen=True, extra="forbid"):
    clusters: str
    """JSON lines `{kept, exact, near}` of document ids, in order of the document that stays."""
    num_clusters: int


class SignatureShard(BaseModel, frozen=True, extra="forbid"):
    ids: tuple[str, ...]


class _Drops(BaseModel, frozen=True, extra="forbid"):
    """What one shard loses: row to (reason, id of the document that stays)."""

    shard: str
    rows: dict[int, tuple[str, str]]


@step(policy="tracked", packages=("numpy", "pyarrow"))
def dedup(config: DedupConfig, context: StepContext) -> DedupResult:
    """Signatures shard by shard, clusters over all of them, then the shards without what the clusters drop.

    The clusters are found in one process, which holds 480 bytes a document.
    """
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    sign = functools.partial(_sign_shard, config.minhash)
    signed = context.map(sign, paths, in_flight=config.shards_in_flight, name="signatures")
    drops, num_clusters = _clusters(config, context, paths, [shard.ids for shard in signed])
    shards = context.map(_keep_shard, drops, in_flight=config.shards_in_flight)
    fields = documents_fields(context, shards, emptied="That cannot come from duplicates: the input was empty.")
    return DedupResult(**fields, clusters=CLUSTERS_FILE, num_clusters=num_clusters)


def _sign_shard(parameters: MinHash, shard: str, path: str) -> SignatureShard:
    import fsspec
    import numpy as np

    from runtime.text.dedup import signatures
    from runtime.text.documents import read_batches

    ids: list[str] = []
    parts = [signatures([], parameters)]
    for batch in read_batches(shard):
        ids += [document.id for document in batch]
        parts.append(signatures([document.text for document in batch], parameters))
    for field in ("exact", "minhash"):
        with fsspec.open(f"{path}/{field}.npy", "wb", auto_mkdir=True) as file:
            np.save(file, np.concatenate([getattr(part, field) for part in parts]))
    return SignatureShard(ids=tuple(ids))


def _clusters(
    config: DedupConfig, context: StepContext, paths: list[str], ids_by_shard: list[tuple[str, ...]]
) -> tuple[list[_Drops], int]:
    import json

    import fsspec
    import numpy as np

    from runtime.text.dedup import clusters

    def load(field: str) -> "np.ndarray":
        arrays = []
        for index in range(len(paths)):
            with fsspec.open(f"{context.output_path}/signatures/{index:05d}/{field}.npy", "rb") as file:
                arrays.append(np.load(file))
        return np.concatenate(arrays)

    found = clusters(load("exact"), load("minhash"), config.minhash)
    places = [(shard, row, id_) for shard, ids in enumerate(ids_by_shard) for row, id_ in enumerate(ids)]
    rows: list[dict[int, tuple[str, str]]] = [{} for _ in paths]
    with fsspec.open(f"{context.output_path}/{CLUSTERS_FILE}", "wb", auto_mkdir=True) as file:
        for cluster in found:
            kept = places[cluster.kept][2]
            for reason, members in ((EXACT, cluster.exact), (NEAR, cluster.near)):
                for member in members:
                    shard, row, _ = places[member]
                    rows[shard][row] = (reason, kept)
            exact, near = ([places[member][2] for member in members] for members in (cluster.exact, cluster.near))
            line = {"kept": kept, "exact": exact, "near": near}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    return [_Drops(shard=path, rows=shard_rows) for path, shard_rows in zip(paths, rows, strict=True)], len(found)


def _keep_shard(drops: _Drops, path: str) -> DocumentsShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger

    ledger = DropLedger(SAMPLES_PER_REASON)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", _kept(drops.shard, drops.rows, ledger))
    return DocumentsShard(
        num_documents=num_documents, num_bytes=num_bytes, dropped=dict(ledger.counts), samples=tuple(ledger.samples)
    )


def _kept(shard: str, rows: Mapping[int, tuple[str, str]], ledger: "DropLedger") -> "Iterator[Document]":
    from runtime.text.documents import read_documents

    for row, document in enumerate(read_documents([shard])):
        if row not in rows:
            yield document
            continue
        reason, kept = rows[row]
        ledger.drop(reason, document_id=document.id, detail=f"of {kept}", text=document.text)
