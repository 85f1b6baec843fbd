"""A step that writes documents, for tests that run real steps through the engine."""

from pydantic import BaseModel

from marin_dag.graph.step import StepContext, step
from runtime.text.documents import Document, write_documents
from steps.documents import DocumentsResult, ShardSize


class WrittenConfig(BaseModel, frozen=True, extra="forbid"):
    shards: tuple[tuple[str, ...], ...]
    """Texts by shard."""


@step()
def written(config: WrittenConfig, context: StepContext) -> DocumentsResult:
    """Write the texts unchanged."""
    counts = []
    for index, texts in enumerate(config.shards):
        rows = [Document(f"{index}/{number}", text, "test") for number, text in enumerate(texts)]
        counts.append(write_documents(f"{context.output_path}/{index:05d}.parquet", rows))
    return DocumentsResult(
        shards=tuple(f"{index:05d}.parquet" for index in range(len(config.shards))),
        num_documents=sum(count for count, _ in counts),
        num_bytes=sum(size for _, size in counts),
        shard_sizes=tuple(ShardSize(num_documents=count, num_bytes=size) for count, size in counts),
        dropped={},
    )
