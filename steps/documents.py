"""What every step that yields documents returns: Parquet shards, counts, and what was dropped and why."""

from pydantic import BaseModel


class DocumentsResult(BaseModel, frozen=True, extra="forbid"):
    """Parquet shards with the columns `id`, `text`, `source`, `metadata` (JSON), all strings."""

    shards: tuple[str, ...]
    """Paths relative to the step's output, in document order."""
    num_documents: int
    num_bytes: int
    """UTF-8 bytes of the text of all documents."""
    dropped: dict[str, int]
    """Documents dropped by this step, by reason."""
    dropped_samples: str | None = None
    """JSON lines `{reason, id, detail, excerpt}`: a few samples a reason; relative to the step's output."""
