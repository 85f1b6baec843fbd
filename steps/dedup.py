"""Dedup: documents in, those out that no earlier source and no earlier document of this one says already."""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.text.minhash import MinHash
from steps.documents import (
    SAMPLES_PER_REASON,
    SHARD_FILE,
    DocumentsResult,
    DocumentsShard,
    documents_fields,
    shard_fields,
)

if TYPE_CHECKING:
    from runtime.text.clusters import Dropped
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger
    from runtime.text.signature_files import SignatureFile

CLUSTERS_FILE = "clusters.jsonl"
KEPT_FOLDER = "kept"
DROPS_FOLDER = "drops"
EXACT, NEAR = "exact duplicate", "near duplicate"
ELSEWHERE = " of another source"
"""Added to either reason, where an earlier source has what is dropped here."""
REASONS = (NEAR, EXACT, NEAR + ELSEWHERE, EXACT + ELSEWHERE)


class DedupConfig(BaseModel, frozen=True, extra="forbid"):
    documents: Input[DocumentsResult]
    against: tuple[Input["DedupResult"], ...] = ()
    """Sources that come before this one, first to last: what they keep is dropped here."""
    minhash: MinHash = MinHash()
    shards_in_flight: Runtime[int] = 64
    keys_per_task: int = Field(default=16_000_000, ge=1)
    """A document has a key for each band and one for its text; so many are compared by one task, at about 80 bytes
    each, and 600 more for each document that meets another. A band of more keys is compared in parts."""


class DedupResult(DocumentsResult, frozen=True, extra="forbid"):
    clusters: str
    """JSON lines `{kept, exact, near}` of document ids, in order of the document that stays; `kept` is of another
    source, where that has it."""
    num_clusters: int
    signatures: tuple[str, ...]
    """Folders of the signatures of the documents that came in, one a shard; relative to the step's output."""
    kept: tuple[str, ...]
    """For each of them, which of its documents stay."""


class SignatureShard(BaseModel, frozen=True, extra="forbid"):
    num_documents: int


class _Drops(BaseModel, frozen=True, extra="forbid"):
    """What one shard loses."""

    shard: str
    dropped: str
    """File of the rows, and of the places of their reasons in `REASONS`."""
    kept: dict[int, str]
    """Of the first rows of each reason: the id of the document that stays."""


def _check(config: DedupConfig) -> None:
    for earlier in config.against:
        its = earlier.config_of(DedupConfig)
        if its is not None and its.minhash != config.minhash:
            raise ValueError(
                f"minhash differs from that of {earlier.name}, which it is compared with; signatures can be compared "
                "only if they are made alike. Give both the same."
            )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def dedup(config: DedupConfig, context: StepContext) -> DedupResult:
    """Signatures shard by shard, pairs of equals by ranges of keys, clusters over the pairs, then the shards that stay.

    A task holds one shard, or the keys of one range and the signatures of those that share one; the step itself holds
    two numbers for each document that has a duplicate.
    """
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    sign = functools.partial(_sign_shard, config.minhash)
    signed = context.map(sign, paths, in_flight=config.shards_in_flight, name="signatures")
    folders = tuple(f"signatures/{index:05d}" for index in range(len(paths)))
    earlier = _earlier(config)
    own = [(f"{context.output_path}/{folder}", None) for folder in folders]
    files = [*((folder, kept) for folder, kept, _ in earlier), *own]
    num_documents = sum(shard.num_documents for shard in signed) + sum(count for *_, count in earlier)
    tasks = _tasks(config.minhash.num_bands + 1, num_documents, config.keys_per_task)
    compare = functools.partial(_compare_keys, config.minhash, files)
    context.map(compare, tasks, in_flight=config.shards_in_flight, name="pairs")
    pairs = [f"{context.output_path}/pairs/{number:05d}" for number in range(len(tasks))]
    drops, num_clusters, kept = _clusters(context, paths, files, len(earlier), pairs)
    shards = context.map(_keep_shard, drops, in_flight=config.shards_in_flight)
    emptied = "Everything in it stands in the sources before it; leave the source out."
    return DedupResult(
        **documents_fields(context, shards, emptied=emptied),
        clusters=CLUSTERS_FILE,
        num_clusters=num_clusters,
        signatures=folders,
        kept=kept,
    )


def _earlier(config: DedupConfig) -> list[tuple[str, str, int]]:
    """Folder, file of the rows that stay, and about the number of documents, of each shard of the sources before."""
    return [
        (source.join(folder), source.join(kept), source.result.num_documents // len(source.result.kept))
        for source in config.against
        for folder, kept in zip(source.result.signatures, source.result.kept, strict=True)
    ]


def _sign_shard(parameters: MinHash, shard: str, path: str) -> SignatureShard:
    from runtime.text.documents import read_batches
    from runtime.text.signature_files import SignatureWriter

    writer = SignatureWriter(parameters)
    for batch in read_batches(shard):
        writer.add([document.id for document in batch], [document.text for document in batch])
    return SignatureShard(num_documents=writer.write(path))


def _tasks(num_bands: int, num_documents: int, keys_per_task: int) -> list[tuple[list[int], tuple[int, int]]]:
    """Bands that are compared together and the range of their keys; the last "band" is that of the texts themselves."""
    from runtime.text.key_files import ALL_BUCKETS, ranges

    if num_documents > keys_per_task:
        return [
            ([band], (part.first, part.after))
            for band in range(num_bands)
            for part in ranges(num_documents, keys_per_task)
        ]
    count = min(num_bands, max(1, -(-num_bands * num_documents // keys_per_task)))
    return [(list(range(number, num_bands, count)), (ALL_BUCKETS.first, ALL_BUCKETS.after)) for number in range(count)]


def _compare_keys(
    parameters: MinHash,
    files: "list[tuple[str, str | None]]",
    task: tuple[list[int], tuple[int, int]],
    path: str,
) -> dict[str, int]:
    from runtime.text.key_files import Buckets
    from runtime.text.signature_files import NO_PAIRS, SignatureFile, exact_pairs, near_pairs, write_pairs

    bands, buckets = task[0], Buckets(*task[1])
    signatures = [SignatureFile(folder, kept) for folder, kept in files]
    near = near_pairs(signatures, [band for band in bands if band < parameters.num_bands], parameters, buckets)
    exact = exact_pairs(signatures, buckets) if parameters.num_bands in bands else NO_PAIRS
    write_pairs(f"{path}/near.npy", near)
    write_pairs(f"{path}/exact.npy", exact)
    return {"near": len(near), "exact": len(exact)}


def _clusters(
    context: StepContext,
    paths: list[str],
    files: "list[tuple[str, str | None]]",
    num_earlier: int,
    pairs: list[str],
) -> tuple[list[_Drops], int, tuple[str, ...]]:
    import numpy as np

    from runtime.text.array_files import write_array
    from runtime.text.clusters import Components, dropped
    from runtime.text.signature_files import SignatureFile, read_pairs, starts_of

    signatures = [SignatureFile(folder, kept) for folder, kept in files]
    starts = starts_of(signatures)
    components = Components()
    exact = np.concatenate([read_pairs(f"{folder}/exact.npy") for folder in pairs])
    components.join(exact)
    for folder in pairs:
        components.join(read_pairs(f"{folder}/near.npy"))
    found = dropped(components, exact, first_own=int(starts[num_earlier]))
    reasons = found.is_exact + 2 * (found.kept < starts[num_earlier])
    edges = np.searchsorted(found.documents, starts)
    sampled: dict[int, tuple[int, int]] = {}
    kept, drops = [], []
    for index in range(len(paths)):
        shard = num_earlier + index
        own = slice(edges[shard], edges[shard + 1])
        rows = found.documents[own] - starts[shard]
        for reason in range(len(REASONS)):
            first = np.flatnonzero(reasons[own] == reason)[:SAMPLES_PER_REASON]
            sampled |= {int(rows[place] + starts[shard]): (index, int(rows[place])) for place in first}
        stays = np.ones(starts[shard + 1] - starts[shard], bool)
        stays[rows] = False
        kept.append(f"{KEPT_FOLDER}/{index:05d}.npy")
        drops.append(f"{context.output_path}/{DROPS_FOLDER}/{index:05d}.npy")
        write_array(f"{context.output_path}/{kept[-1]}", stays)
        write_array(drops[-1], np.stack([rows, reasons[own]], axis=1))
    num_clusters, kept_ids = _write_clusters(context, signatures, found, sampled, len(paths))
    work = [_Drops(shard=p, dropped=d, kept=k) for p, d, k in zip(paths, drops, kept_ids, strict=True)]
    return work, num_clusters, tuple(kept)


def _write_clusters(
    context: StepContext,
    signatures: "list[SignatureFile]",
    found: "Dropped",
    sampled: Mapping[int, tuple[int, int]],
    num_shards: int,
) -> tuple[int, list[dict[int, str]]]:
    """How many clusters there are, and by shard and row the ids of what stays for the documents that are `sampled`."""
    import json

    import fsspec
    import numpy as np

    from runtime.text.clusters import clusters
    from runtime.text.signature_files import ids_of

    num_clusters = 0
    kept_ids: list[dict[int, str]] = [{} for _ in range(num_shards)]
    with fsspec.open(f"{context.output_path}/{CLUSTERS_FILE}", "wb", auto_mkdir=True) as file:
        for block in clusters(found):
            num_clusters += len(block)
            named = [member for cluster in block for member in (cluster.kept, *cluster.exact, *cluster.near)]
            ids = ids_of(signatures, np.unique(np.array(named, np.int64)))
            for cluster in block:
                exact, near = ([ids[member] for member in members] for members in (cluster.exact, cluster.near))
                line = {"kept": ids[cluster.kept], "exact": exact, "near": near}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                for member in (*cluster.exact, *cluster.near):
                    if member in sampled:
                        shard, row = sampled[member]
                        kept_ids[shard][row] = ids[cluster.kept]
    return num_clusters, kept_ids


def _keep_shard(drops: _Drops, path: str) -> DocumentsShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger

    ledger = DropLedger(SAMPLES_PER_REASON)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", _kept(drops, ledger))
    return DocumentsShard(**shard_fields(path, num_documents, num_bytes, ledger))


def _kept(drops: _Drops, ledger: "DropLedger") -> "Iterator[Document]":
    from runtime.text.array_files import read_array
    from runtime.text.documents import read_documents

    reasons = dict(read_array(drops.dropped).tolist())
    for row, document in enumerate(read_documents([drops.shard])):
        if row not in reasons:
            yield document
            continue
        size = len(document.text.encode())
        detail = f"of {drops.kept.get(row, 'another')}"
        ledger.drop(REASONS[reasons[row]], document_id=document.id, detail=detail, text=document.text, num_bytes=size)
