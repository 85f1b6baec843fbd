"""Drops of a step: counts by reason, with a few samples of each, in document order."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping

import fsspec

from runtime.text.documents import Document

EXCERPT_CHARACTERS = 200


@dataclasses.dataclass
class DropLedger:
    """Counts of drops, and the first `samples_per_reason` samples of each reason."""

    samples_per_reason: int
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    num_bytes: Counter[str] = dataclasses.field(default_factory=Counter)
    """UTF-8 bytes of the dropped texts by reason; 0 for pieces without a text."""
    samples: list[dict[str, str]] = dataclasses.field(default_factory=list)
    excluded: set[str] = dataclasses.field(default_factory=set)
    """Reasons that are no fault."""

    def drop(self, reason: str, *, document_id: str, detail: str, text: str, num_bytes: int = 0) -> None:
        """Count one drop; its sample shows the beginning of `text`."""
        if self.counts[reason] < self.samples_per_reason:
            excerpt = text[:EXCERPT_CHARACTERS].encode(errors="replace").decode()
            self.samples.append({"reason": reason, "id": document_id, "detail": detail, "excerpt": excerpt})
        self.counts[reason] += 1
        self.num_bytes[reason] += num_bytes

    def drop_document(self, reason: str, document: Document, detail: str, *, excerpt: str | None = None) -> None:
        """Count a document that was read; its sample shows `excerpt` or the beginning of its text."""
        text, num_bytes = document.text if excerpt is None else excerpt, len(document.text.encode())
        self.drop(reason, document_id=document.id, detail=detail, text=text, num_bytes=num_bytes)

    def exclude(self, reason: str, *, document_id: str, detail: str) -> None:
        """Count a piece that is no document by its nature."""
        self.excluded.add(reason)
        self.drop(reason, document_id=document_id, detail=detail, text="")

    def merge(self, counts: Mapping[str, int], num_bytes: Mapping[str, int]) -> None:
        """Add what another ledger has counted."""
        self.counts.update(counts)
        self.num_bytes.update(num_bytes)

    def lacks_samples_of(self, reasons: Iterable[str]) -> bool:
        """Return whether a ledger that counted these reasons has samples that this one has room for."""
        kept = Counter(sample["reason"] for sample in self.samples)
        return any(kept[reason] < self.samples_per_reason for reason in reasons)

    def add_samples(self, samples: Iterable[dict[str, str]]) -> None:
        """Add the samples of a later shard."""
        kept = Counter(sample["reason"] for sample in self.samples)
        for sample in samples:
            if kept[sample["reason"]] < self.samples_per_reason:
                self.samples.append(sample)
                kept[sample["reason"]] += 1

    def write(self, path: str) -> None:
        """Write JSON lines, by reason and within a reason in document order."""
        ordered = sorted(self.samples, key=lambda sample: sample["reason"])
        with fsspec.open(path, "wb", auto_mkdir=True) as file:
            file.writelines(json.dumps(sample, ensure_ascii=False).encode() + b"\n" for sample in ordered)


def read_samples(path: str) -> list[dict[str, str]]:
    """Read the samples that a ledger wrote."""
    with fsspec.open(path, "rb") as file:
        return [json.loads(line) for line in file]
