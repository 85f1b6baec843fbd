"""Dedup: documents in, documents out; drops duplicates of earlier documents and of earlier sources."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, StepContext, step
from runtime.text.minhash import MinHash
from steps.documents import (
    SAMPLES_PER_REASON,
    DocumentsConfig,
    DocumentsResult,
    DocumentsShard,
    documents_fields,
    write_shard,
)

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger

EXACT, NEAR = "exact duplicate", "near duplicate"
ELSEWHERE = " of another source"
"""Added to either reason if an earlier source has the document that stays."""
DROPS = "drops/{:05d}.npy"
"""File of the drops of a shard, relative to the step's output."""
REASONS = (NEAR, EXACT, NEAR + ELSEWHERE, EXACT + ELSEWHERE)


class DedupConfig(DocumentsConfig, frozen=True, extra="forbid"):
    against: tuple[Input["DedupResult"], ...] = ()
    """Earlier sources, first to last: what they keep is dropped here."""
    minhash: MinHash = MinHash()
    keys_per_task: int = Field(default=16_000_000, ge=1)
    """A document has a key for each band and one for its text. A task compares this many, at about 80 bytes each, and
    600 bytes more for each document that meets another. A band of more keys is compared in parts."""


class DedupResult(DocumentsResult, frozen=True, extra="forbid"):
    signatures: tuple[str, ...]
    """Folders of the signatures of the incoming documents, one per shard; relative to the step's output."""
    kept: tuple[str, ...]
    """The file, for each folder, that marks which documents stay."""


class _Drops(BaseModel, frozen=True, extra="forbid"):
    """The drops of one shard."""

    shard: str
    dropped: str
    """File of the rows, their reasons as places in `REASONS`, and the numbers of the documents that stay instead.
    Numbers count the kept documents of earlier sources first, then the incoming documents."""
    kept: dict[int, str]
    """Ids of the documents that stay, by row, for the first rows of each reason."""


def _check(config: DedupConfig) -> None:
    for earlier in config.against:
        its = earlier.config_of(DedupConfig)
        if its is not None and its.minhash != config.minhash:
            raise ValueError(
                f"minhash differs from that of {earlier.name}, which it is compared with. Give both the same."
            )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def dedup(config: DedupConfig, context: StepContext) -> DedupResult:
    """Write signatures by shard, pairs of duplicates by range of keys, clusters of pairs, then the remaining documents.

    A task holds one shard, or the keys of one range with the signatures of documents that share a key. The step holds
    two numbers for each document that has a duplicate.
    """
    paths = [config.documents.join(shard) for shard in config.documents.result.shards]
    sign = functools.partial(_sign_shard, config.minhash)
    signed = context.map(sign, paths, in_flight=config.shards_in_flight, name="signatures")
    folders = tuple(f"signatures/{index:05d}" for index in range(len(paths)))
    files: list[tuple[str, str | None]] = [
        (source.join(folder), source.join(kept))
        for source in config.against
        for folder, kept in zip(source.result.signatures, source.result.kept, strict=True)
    ]
    num_earlier = len(files)
    files += [(f"{context.output_path}/{folder}", None) for folder in folders]
    num_documents = sum(signed) + sum(s.result.num_documents for s in config.against)
    tasks = _tasks(config.minhash.num_bands + 1, num_documents, config.keys_per_task)
    compare = functools.partial(_compare_keys, config.minhash, files)
    context.map(compare, tasks, in_flight=config.shards_in_flight, name="pairs")
    pairs = [f"{context.output_path}/pairs/{number:05d}" for number in range(len(tasks))]
    drops, kept = _dropped(context, paths, files, num_earlier, pairs)
    shards = context.map(_keep_shard, drops, in_flight=config.shards_in_flight)
    emptied = "Earlier sources have all of its documents; leave the source out."
    return DedupResult(
        **documents_fields(context, shards, emptied=emptied, warn_above_share=config.warn_above_share),
        signatures=folders,
        kept=kept,
    )


def _sign_shard(parameters: MinHash, shard: str, path: str) -> int:
    from runtime.text.documents import read_batches
    from runtime.text.signature_files import write_signatures

    batches = (([one.id for one in batch], [one.text for one in batch]) for batch in read_batches(shard))
    return write_signatures(path, batches, parameters)


def _tasks(num_bands: int, num_documents: int, keys_per_task: int) -> list[tuple[list[int], tuple[int, int]]]:
    """Return bands that one task compares, and the range of their keys; the last "band" has the keys of the texts."""
    from runtime.text.signature_files import ALL_BUCKETS, ranges

    if num_documents > keys_per_task:
        return [
            ([band], (part.first, part.after))
            for band in range(num_bands)
            for part in ranges(num_documents, keys_per_task)
        ]
    count = min(num_bands, max(1, -(-num_bands * num_documents // keys_per_task)))
    return [(list(range(number, num_bands, count)), (ALL_BUCKETS.first, ALL_BUCKETS.after)) for number in range(count)]


def _compare_keys(
    parameters: MinHash, files: list[tuple[str, str | None]], task: tuple[list[int], tuple[int, int]], path: str
) -> dict[str, int]:
    from runtime.text.array_files import write_array
    from runtime.text.signature_files import NO_PAIRS, Buckets, SignatureFile, exact_pairs, near_pairs

    bands, buckets = task[0], Buckets(*task[1])
    signatures = [SignatureFile(folder, kept) for folder, kept in files]
    near = near_pairs(signatures, [band for band in bands if band < parameters.num_bands], parameters, buckets)
    exact = exact_pairs(signatures, buckets) if parameters.num_bands in bands else NO_PAIRS
    write_array(f"{path}/near.npy", near)
    write_array(f"{path}/exact.npy", exact)
    return {"near": len(near), "exact": len(exact)}


def _dropped(
    context: StepContext, paths: list[str], files: list[tuple[str, str | None]], num_earlier: int, pairs: list[str]
) -> tuple[list[_Drops], tuple[str, ...]]:
    """Return the drops of each shard, and the files that mark which documents stay."""
    import numpy as np

    from runtime.text.array_files import read_array, write_array
    from runtime.text.dedup import Components, dropped
    from runtime.text.signature_files import SignatureFile, ids_of, starts_of

    signatures = [SignatureFile(folder, kept) for folder, kept in files]
    starts = starts_of(signatures)
    components = Components()
    exact = np.concatenate([read_array(f"{folder}/exact.npy") for folder in pairs])
    components.join(exact)
    for folder in pairs:
        components.join(read_array(f"{folder}/near.npy"))
    found = dropped(components, exact, first_own=int(starts[num_earlier]))
    reasons = found.is_exact + 2 * (found.kept < starts[num_earlier])
    edges = np.searchsorted(found.documents, starts)
    kept: list[str] = []
    sampled: list[np.ndarray] = []
    work: list[_Drops] = []
    for shard in range(num_earlier, len(files)):
        own = np.arange(edges[shard], edges[shard + 1])
        rows = found.documents[own] - starts[shard]
        stays = np.ones(starts[shard + 1] - starts[shard], bool)
        stays[rows] = False
        of_reason = [own[reasons[own] == reason][:SAMPLES_PER_REASON] for reason in range(len(REASONS))]
        sampled.append(np.concatenate(of_reason))
        kept.append(f"kept/{len(kept):05d}.npy")
        write_array(f"{context.output_path}/{kept[-1]}", stays)
        drops = np.stack([rows, reasons[own], found.kept[own]], axis=1)
        write_array(f"{context.output_path}/{DROPS.format(len(sampled) - 1)}", drops)
    ids = ids_of(signatures, np.unique(found.kept[np.concatenate([np.empty(0, np.int64), *sampled])]))
    for number, (path, places) in enumerate(zip(paths, sampled, strict=True)):
        rows = found.documents[places] - starts[num_earlier + number]
        named = {int(row): ids[int(one)] for row, one in zip(rows, found.kept[places], strict=True)}
        work.append(_Drops(shard=path, dropped=f"{context.output_path}/{DROPS.format(number)}", kept=named))
    return work, tuple(kept)


def _keep_shard(drops: _Drops, path: str) -> DocumentsShard:
    fields, _ = write_shard(path, functools.partial(_kept, drops))
    return DocumentsShard(**fields)


def _kept(drops: _Drops, ledger: "DropLedger") -> "Iterator[Document]":
    from runtime.text.array_files import read_array
    from runtime.text.documents import read_documents

    reasons = dict(read_array(drops.dropped)[:, :2].tolist())
    for row, document in enumerate(read_documents([drops.shard])):
        if row in reasons:
            ledger.drop_document(REASONS[reasons[row]], document, f"of {drops.kept.get(row, 'another')}")
        else:
            yield document
