"""Dedup: documents in, those out that no earlier source and no earlier document of this one says already."""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.step import Input, Runtime, StepContext, step
from runtime.text.minhash import MinHash
from steps.documents import SAMPLES_PER_REASON, SHARD_FILE, DocumentsResult, DocumentsShard, documents_fields

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger

CLUSTERS_FILE = "clusters.jsonl"
KEPT_FOLDER = "kept"
EXACT, NEAR = "exact duplicate", "near duplicate"
ELSEWHERE = " of another source"
"""Added to either reason, where an earlier source has what is dropped here."""


class DedupConfig(BaseModel, frozen=True, extra="forbid"):
    documents: Input[DocumentsResult]
    against: tuple[Input["DedupResult"], ...] = ()
    """Sources that come before this one, first to last: what they keep is dropped here."""
    minhash: MinHash = MinHash()
    shards_in_flight: Runtime[int] = 64
    keys_per_task: int = Field(default=16_000_000, ge=1)
    """A document has a key for each band and one for its text; so many are compared by one task, at 64 bytes each."""


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
    """What one shard loses: row to (reason, id of the document that stays)."""

    shard: str
    rows: dict[int, tuple[str, str]]


def _check(config: DedupConfig) -> None:
    for earlier in config.against:
        if earlier.has_step and earlier.step.config.minhash != config.minhash:
            raise ValueError(
                f"minhash differs from that of {earlier.name}, which it is compared with; signatures can be compared "
                "only if they are made alike. Give both the same."
            )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def dedup(config: DedupConfig, context: StepContext) -> DedupResult:
    """Signatures shard by shard, pairs of equals band by band, clusters over the pairs, then the shards that stay.

    A task holds a key for each document and band that it compares, and the signatures of those that share one with
    another; the step itself holds the pairs.
    """
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    sign = functools.partial(_sign_shard, config.minhash)
    signed = context.map(sign, paths, in_flight=config.shards_in_flight, name="signatures")
    folders = tuple(f"signatures/{index:05d}" for index in range(len(paths)))
    earlier = _earlier(config)
    own = [(f"{context.output_path}/{folder}", None) for folder in folders]
    bands = config.minhash.num_bands + 1  # and the texts themselves
    num_keys = bands * (sum(shard.num_documents for shard in signed) + sum(count for *_, count in earlier))
    num_tasks = min(bands, max(1, -(-num_keys // config.keys_per_task)))
    files = [*((folder, kept) for folder, kept, _ in earlier), *own]
    compare = functools.partial(_compare_bands, config.minhash, files)
    parts = [list(range(number, bands, num_tasks)) for number in range(num_tasks)]
    context.map(compare, parts, in_flight=config.shards_in_flight, name="pairs")
    pairs = [f"{context.output_path}/pairs/{number:05d}" for number in range(num_tasks)]
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


def _compare_bands(
    parameters: MinHash, files: "list[tuple[str, str | None]]", bands: list[int], path: str
) -> dict[str, int]:
    from runtime.text.signature_files import NO_PAIRS, SignatureFile, exact_pairs, near_pairs, write_pairs

    signatures = [SignatureFile(folder, kept) for folder, kept in files]
    near = near_pairs(signatures, [band for band in bands if band < parameters.num_bands], parameters)
    exact = exact_pairs(signatures) if parameters.num_bands in bands else NO_PAIRS
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
    import json

    import fsspec
    import numpy as np

    from runtime.text.dedup import clusters
    from runtime.text.signature_files import SignatureFile, ids_of, read_pairs, starts_of

    signatures = [SignatureFile(folder, kept) for folder, kept in files]
    starts = starts_of(signatures)
    first_own = int(starts[num_earlier])
    exact_found, near_found = (read_pairs([f"{folder}/{name}.npy" for folder in pairs]) for name in ("exact", "near"))
    found = clusters(exact_found, near_found, first_own=first_own)
    named = sorted({member for cluster in found for member in (cluster.kept, *cluster.exact, *cluster.near)})
    ids = ids_of(signatures, np.array(named, np.int64))
    rows: list[dict[int, tuple[str, str]]] = [{} for _ in paths]
    with fsspec.open(f"{context.output_path}/{CLUSTERS_FILE}", "wb", auto_mkdir=True) as file:
        for cluster in found:
            where = ELSEWHERE if cluster.kept < first_own else ""
            for reason, members in ((EXACT, cluster.exact), (NEAR, cluster.near)):
                for member in members:
                    shard = int(np.searchsorted(starts, member, side="right")) - 1
                    rows[shard - num_earlier][member - int(starts[shard])] = (reason + where, ids[cluster.kept])
            exact, near = ([ids[member] for member in members] for members in (cluster.exact, cluster.near))
            line = {"kept": ids[cluster.kept], "exact": exact, "near": near}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
    kept = tuple(f"{KEPT_FOLDER}/{index:05d}.npy" for index in range(len(paths)))
    for name, dropped, signature_file in zip(kept, rows, signatures[num_earlier:], strict=True):
        stays = np.ones(len(signature_file), bool)
        stays[list(dropped)] = False
        with fsspec.open(f"{context.output_path}/{name}", "wb", auto_mkdir=True) as file:
            np.save(file, stays)
    return [_Drops(shard=path, rows=shard_rows) for path, shard_rows in zip(paths, rows, strict=True)], len(found), kept


def _keep_shard(drops: _Drops, path: str) -> DocumentsShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger

    ledger = DropLedger(SAMPLES_PER_REASON)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", _kept(drops.shard, drops.rows, ledger))
    return DocumentsShard(
        num_documents=num_documents,
        num_bytes=num_bytes,
        dropped=dict(ledger.counts),
        dropped_bytes=dict(ledger.num_bytes),
        samples=tuple(ledger.samples),
    )


def _kept(shard: str, rows: Mapping[int, tuple[str, str]], ledger: "DropLedger") -> "Iterator[Document]":
    from runtime.text.documents import read_documents

    for row, document in enumerate(read_documents([shard])):
        if row not in rows:
            yield document
            continue
        reason, kept = rows[row]
        size = len(document.text.encode())
        ledger.drop(reason, document_id=document.id, detail=f"of {kept}", text=document.text, num_bytes=size)
