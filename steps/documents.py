"""Documents: the result of every step that yields them, as Parquet shards, counts, and drops with their reasons."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, Runtime, StepContext

if TYPE_CHECKING:
    from runtime.text.documents import Document
    from runtime.text.drops import DropLedger

SHARD_FILE = "documents.parquet"
DROPPED_FILE = "dropped.jsonl"
SAMPLES_PER_REASON = 20
WARNING_SAMPLES = 3


class ShardSize(BaseModel, frozen=True, extra="forbid"):
    """The content of one shard, so that a reader notices a loss."""

    num_documents: int
    num_bytes: int


class DocumentsResult(BaseModel, frozen=True, extra="forbid"):
    """Parquet shards with the columns `id`, `text`, `source`, `metadata` (JSON), all strings."""

    shards: tuple[str, ...]
    """Paths relative to the step's output, in document order."""
    num_documents: int
    num_bytes: int
    """UTF-8 bytes of the text of all documents."""
    shard_sizes: tuple[ShardSize, ...] = ()
    """Sizes, one per shard; the tokenize step refuses documents without them."""
    dropped: dict[str, int]
    """Documents dropped by this step, by reason."""
    dropped_bytes: dict[str, int] = {}
    """UTF-8 bytes of the dropped texts; 0 for unreadable pieces."""
    dropped_samples: str | None = None
    """JSON lines `{reason, id, detail, excerpt}`, a few per reason; relative to the step's output."""

    def sizes_by_shard(self, name: str) -> tuple[ShardSize, ...]:
        """Return `shard_sizes`; raise UserError if they do not add up to the totals of step `name`."""
        sizes = self.shard_sizes
        found = (len(sizes), sum(each.num_documents for each in sizes), sum(each.num_bytes for each in sizes))
        expected = (len(self.shards), self.num_documents, self.num_bytes)
        if found != expected:
            raise UserError(
                f"{name}: the shards, documents and bytes of shard_sizes are {found}, those of the result {expected}. "
                "Give `shard_sizes` one entry for each of `shards`."
            )
        return self.shard_sizes


class DocumentsConfig(BaseModel, frozen=True, extra="forbid"):
    """The fields of a step that keeps some documents and drops others."""

    documents: Input[DocumentsResult]
    shards_in_flight: Runtime[int] = 64
    warn_above_share: Runtime[float] = Field(default=0.5, gt=0, le=1)
    """A warning is recorded if a larger share is dropped: of the bytes, or of bytes and documents on average, because
    many short documents hold little text."""


class DocumentsShard(BaseModel, frozen=True, extra="forbid"):
    """The result of one shard; its folder holds the documents and, if any were dropped, samples of the dropped ones."""

    num_documents: int
    num_bytes: int
    dropped: dict[str, int]
    dropped_bytes: dict[str, int]


def write_shard(
    path: str, documents: "Callable[[DropLedger], Iterable[Document]]"
) -> "tuple[dict[str, Any], DropLedger]":
    """Write the documents of one shard, with samples of what `documents` drops.

    Returns:
        The fields of a `DocumentsShard`, and the drops.
    """
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger

    ledger = DropLedger(SAMPLES_PER_REASON)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", documents(ledger))
    if ledger.samples:
        ledger.write(f"{path}/{DROPPED_FILE}")
    dropped = {"dropped": dict(ledger.counts), "dropped_bytes": dict(ledger.num_bytes)}
    return {"num_documents": num_documents, "num_bytes": num_bytes, **dropped}, ledger


def as_text(sample: Mapping[str, str], origin: str) -> str:
    """Return a sample of a drop as one line; `origin` as in `documents_fields`."""
    _, anchored, anchor = sample["id"].partition("#")
    return f"{f'{origin}{anchored}{anchor}' if origin else sample['id']}: {sample['reason']}: {sample['detail']}"


def documents_fields(
    context: StepContext,
    shards: Sequence[DocumentsShard],
    *,
    emptied: str,
    dropped_before: Sequence[tuple[str, str, str]] = (),
    origin: str = "",
    warn_above_share: float = 1.0,
) -> dict[str, Any]:
    """Return the fields of a `DocumentsResult` for the shards of `context.map`; write samples of dropped documents.

    `emptied` is the fix for a source without documents left. `dropped_before` has reason, id and detail of pieces that
    were dropped before there were shards. Messages name the only file by `origin`, if given.

    Raises:
        UserError: no document is left. Without the error, a mixture would find the empty source hours later.
    """
    from runtime.text.drops import DropLedger, read_samples

    ledger = DropLedger(SAMPLES_PER_REASON)
    for reason, identifier, detail in dropped_before:
        ledger.drop(reason, document_id=identifier, detail=detail, text="")
    for shard in shards:
        ledger.merge(shard.dropped, shard.dropped_bytes)
    for index, shard in enumerate(shards):
        if ledger.lacks_samples_of(shard.dropped):
            ledger.add_samples(read_samples(f"{context.output_path}/shards/{index:05d}/{DROPPED_FILE}"))
    dropped = dict(sorted(ledger.counts.items()))
    if ledger.samples:
        ledger.write(f"{context.output_path}/{DROPPED_FILE}")
    num_documents = sum(shard.num_documents for shard in shards)
    if num_documents == 0:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items()) or "nothing was dropped"
        first = f" The first is {as_text(ledger.samples[0], origin)}" if ledger.samples else ""
        others = f"; samples are in {context.output_path}/{DROPPED_FILE}." if ledger.samples else ""
        raise UserError(f"{context.name}: no document is left ({reasons}). {emptied}{first}{others}")
    num_bytes = sum(shard.num_bytes for shard in shards)
    _warn_of_drops(context, num_documents, num_bytes, ledger, warn_above_share)
    return {
        "shards": tuple(f"shards/{index:05d}/{SHARD_FILE}" for index in range(len(shards))),
        "num_documents": num_documents,
        "num_bytes": num_bytes,
        "shard_sizes": tuple(
            ShardSize(num_documents=shard.num_documents, num_bytes=shard.num_bytes) for shard in shards
        ),
        "dropped": dropped,
        "dropped_bytes": dict(sorted(ledger.num_bytes.items())),
        "dropped_samples": DROPPED_FILE if ledger.samples else None,
    }


def _warn_of_drops(
    context: StepContext, num_documents: int, num_bytes: int, ledger: "DropLedger", warn_above_share: float
) -> None:
    """Warn if a larger share of documents or bytes is dropped: by which rule, with samples."""
    dropped, dropped_bytes = ledger.counts.total(), ledger.num_bytes.total()
    share, byte_share = dropped / (num_documents + dropped), dropped_bytes / max(num_bytes + dropped_bytes, 1)
    if max(byte_share, (share + byte_share) / 2) <= warn_above_share:
        return
    by_size = ledger.num_bytes if byte_share > share else ledger.counts
    reason = min(by_size, key=lambda reason: (-by_size[reason], reason))
    found = [sample for sample in ledger.samples if sample["reason"] == reason][:WARNING_SAMPLES]
    context.warn_about_output(
        f"drops {share:.1%} of its documents ({dropped:,} of {num_documents + dropped:,}) and {byte_share:.1%} of "
        f"their bytes, above warn_above_share ({warn_above_share:.0%}); most by {reason!r}: "
        f"{ledger.counts[reason]:,} documents, {ledger.num_bytes[reason]:,} bytes",
        samples=[f"{sample['id']} ({sample['detail']}): {sample['excerpt']}" for sample in found],
        file=DROPPED_FILE,
    )
