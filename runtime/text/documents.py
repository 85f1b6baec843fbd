"""Documents: Parquet shards of `id`, `text`, `source`, `metadata`; equal documents give equal bytes.

Row groups depend on the documents alone, and the file holds no index, date or host. Reading and writing hold one row
group in memory, so a shard may have any size.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("id", "text", "source", "metadata")])
ROW_GROUP_DOCUMENTS = 4_096
ROW_GROUP_BYTES = 8 << 20


class Document(NamedTuple):
    """A text and its origin."""

    id: str
    """Unique over all sources; samples are drawn by it."""
    text: str
    source: str
    metadata: str = "{}"
    """A JSON object."""


class DocumentsError(ValueError):
    """A shard that cannot be read, or a document that cannot be written."""


def write_documents(path: str, documents: Iterable[Document]) -> tuple[int, int]:
    """Write one shard and return the number of documents and the UTF-8 bytes of their texts.

    `path` is anything that fsspec opens. Without documents, the shard is valid and has no rows.
    """
    num_documents = num_bytes = 0
    options = {"compression": "zstd", "write_page_checksum": True}
    with fsspec.open(path, "wb", auto_mkdir=True) as file, pq.ParquetWriter(file, SCHEMA, **options) as writer:
        for group, group_bytes in _row_groups(documents):
            columns = [pa.array(column, pa.string()) for column in zip(*group, strict=True)]
            writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=len(group))
            num_documents += len(group)
            num_bytes += group_bytes
    return num_documents, num_bytes


def read_documents(paths: Iterable[str]) -> Iterator[Document]:
    """Yield every document of the shards, in the order of the shards and within each as written."""
    for path in paths:
        for batch in read_batches(path):
            yield from batch


def read_batches(path: str, first_row: int = 0) -> Iterator[list[Document]]:
    """Yield the documents of one shard from a row on, a row group at a time; earlier row groups are not read."""
    with fsspec.open(path, "rb") as file:
        try:
            reader = pq.ParquetFile(file, page_checksum_verification=True)
        except pa.ArrowInvalid as error:
            raise DocumentsError(
                f"{path}: not a Parquet file ({error}); it may be cut short. Delete it, and run its step again."
            ) from error
        names = reader.schema_arrow.names
        wrong = [name for name in SCHEMA.names if names.count(name) != 1]
        if wrong:
            raise DocumentsError(
                f"{path}: columns are {names}; {wrong} must be there exactly once. Write the shard with "
                f"{SCHEMA.names}, all strings."
            )
        for index in range(reader.num_row_groups):
            num_rows = reader.metadata.row_group(index).num_rows
            if first_row >= num_rows > 0:
                first_row -= num_rows
                continue
            # In this thread: see `runtime.tables.parquet_bytes`.
            table = reader.read_row_group(index, columns=SCHEMA.names, use_threads=False).slice(first_row).cast(SCHEMA)
            columns = (table.column(name).to_pylist() for name in SCHEMA.names)
            yield [Document(*row) for row in zip(*columns, strict=True)]
            first_row = 0


def _row_groups(documents: Iterable[Document]) -> Iterator[tuple[list[Document], int]]:
    group: list[Document] = []
    group_bytes = 0
    for document in documents:
        try:
            size = len(document.text.encode())
        except UnicodeEncodeError as error:
            raise DocumentsError(
                f"document {document.id!r} of source {document.source!r}: text has no UTF-8 form ({error}). "
                "Decode the source strictly, or drop the document and count it."
            ) from error
        group.append(document)
        group_bytes += size
        if len(group) == ROW_GROUP_DOCUMENTS or group_bytes >= ROW_GROUP_BYTES:
            yield group, group_bytes
            group, group_bytes = [], 0
    if group:
        yield group, group_bytes
