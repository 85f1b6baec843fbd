"""What a step drops: counted by reason, with a few samples of each, in document order."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import fsspec

EXCERPT_CHARACTERS = 200


@dataclasses.dataclass
class DropLedger:
    """Counts every drop; keeps the first `samples_per_reason` of each reason."""

    samples_per_reason: int
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    num_bytes: Counter[str] = dataclasses.field(default_factory=Counter)
    """UTF-8 bytes of the texts that were dropped, by reason; 0 of what has no text yet."""
    samples: list[dict[str, str]] = dataclasses.field(default_factory=list)
    excluded: set[str] = dataclasses.field(default_factory=set)
    """Reasons that are no fault of anybody's."""

    def drop(self, reason: str, *, document_id: str, detail: str, text: str, num_bytes: int = 0) -> None:
        """Counts one; `text` is what its sample shows the beginning of."""
        if self.counts[reason] < self.samples_per_reason:
            excerpt = text[:EXCERPT_CHARACTERS].encode(errors="replace").decode()
            self.samples.append({"reason": reason, "id": document_id, "detail": detail, "excerpt": excerpt})
        self.counts[reason] += 1
        self.num_bytes[reason] += num_bytes

    def exclude(self, reason: str, *, document_id: str, detail: str) -> None:
        """Counts what is no document by its nature, however much there is of it."""
        self.excluded.add(reason)
        self.drop(reason, document_id=document_id, detail=detail, text="")

    def merge(self, counts: Mapping[str, int], num_bytes: Mapping[str, int]) -> None:
        """Adds what another ledger has counted."""
        self.counts.update(counts)
        self.num_bytes.update(num_bytes)

    def lacks_samples_of(self, reasons: Iterable[str]) -> bool:
        """Whether a ledger that counted these reasons has samples that this one still keeps."""
        kept = Counter(sample["reason"] for sample in self.samples)
        return any(kept[reason] < self.samples_per_reason for reason in reasons)

    def add_samples(self, samples: Iterable[dict[str, str]]) -> None:
        """Adds those of a later shard."""
        kept = Counter(sample["reason"] for sample in self.samples)
        for sample in samples:
            if kept[sample["reason"]] < self.samples_per_reason:
                self.samples.append(sample)
                kept[sample["reason"]] += 1

    def write(self, path: str) -> None:
        """JSON lines, reasons in alphabetical order and within a reason in document order."""
        with fsspec.open(path, "wb", auto_mkdir=True) as file:
            for sample in sorted(self.samples, key=lambda sample: sample["reason"]):
                file.write(json.dumps(sample, ensure_ascii=False).encode() + b"\n")


def read_samples(path: str) -> list[dict[str, Any]]:
    """What `DropLedger.write` wrote, or other samples as JSON lines."""
    with fsspec.open(path, "rb") as file:
        return [json.loads(line) for line in file]
