"""Edited documents: the result of a step that removes text from documents, with counts and samples of the removals."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from marin_dag.graph.step import StepContext
from steps.documents import SAMPLES_PER_REASON, DocumentsResult, DocumentsShard

REMOVED_FILE = "removed.jsonl"
MAX_SAMPLES = 100
MAX_PIECES, MAX_CHARACTERS = 6, 200
"""Size of a sample."""


class EditedDocumentsResult(DocumentsResult, frozen=True, extra="forbid"):
    """Incoming bytes are those that stay, those of dropped documents, and those that edits removed."""

    num_edited: int
    """Documents that lost text and stayed."""
    num_bytes_removed: int
    """UTF-8 bytes that these lost."""
    removed_samples: str | None
    """JSON lines `{id, removed, left}` of some edited documents: removed lines or sentences, and how many are left;
    relative to the step's output."""


class EditedDocumentsShard(DocumentsShard, frozen=True, extra="forbid"):
    num_edited: int
    num_bytes_removed: int


@dataclasses.dataclass
class Edits:
    """The edits of one shard."""

    num_documents: int = 0
    num_bytes: int = 0
    samples: list[str] = dataclasses.field(default_factory=list)

    @property
    def wants_samples(self) -> bool:
        return len(self.samples) < SAMPLES_PER_REASON

    def count(self, before: str, after: str) -> None:
        """Count one document that stays."""
        self.num_documents += 1
        self.num_bytes += len(before.encode()) - len(after.encode())

    def add_sample(self, document_id: str, *, removed: Sequence[str], num_left: int) -> None:
        shown = [piece[:MAX_CHARACTERS] for piece in removed[:MAX_PIECES]]
        self.samples.append(json.dumps({"id": document_id, "removed": shown, "left": num_left}, ensure_ascii=False))

    def shard_fields(self, path: str) -> dict[str, Any]:
        """Return the fields of an `EditedDocumentsShard` beside its documents'; write samples into its folder."""
        _write_lines(f"{path}/{REMOVED_FILE}", self.samples)
        return {"num_edited": self.num_documents, "num_bytes_removed": self.num_bytes}


def edited_fields(context: StepContext, shards: Sequence[EditedDocumentsShard]) -> dict[str, Any]:
    """Return the fields of an `EditedDocumentsResult` beside its documents'; write the first samples of all shards."""
    import fsspec

    lines: list[str] = []
    for index, shard in enumerate(shards):
        if shard.num_edited and len(lines) < MAX_SAMPLES:
            with fsspec.open(f"{context.output_path}/shards/{index:05d}/{REMOVED_FILE}", "rb") as file:
                lines += [line.decode().rstrip("\n") for line in file][: MAX_SAMPLES - len(lines)]
    _write_lines(f"{context.output_path}/{REMOVED_FILE}", lines)
    return {
        "num_edited": sum(shard.num_edited for shard in shards),
        "num_bytes_removed": sum(shard.num_bytes_removed for shard in shards),
        "removed_samples": REMOVED_FILE if lines else None,
    }


def _write_lines(path: str, lines: Sequence[str]) -> None:
    import fsspec

    if lines:
        with fsspec.open(path, "wb", auto_mkdir=True) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
