"""Documents: Parquet shards of `id`, `text`, `source`, `metadata`; equal documents give equal bytes.

Row groups are cut by what is in the documents, never by time or memory at hand, and no index, date or
host goes into the file. Both directions hold one row group in memory, so a shard may be of any size.
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
    """One text and where it comes from."""

    id: str
    """Unique over all sources; what a sample is keyed by."""
    text: str
    source: str
    metadata: str = "{}"
    """A JSON object."""


class DocumentsError(ValueError):
    """A shard that cannot be read or a document that cannot be written; the message says which and what to do."""


def write_documents(path: str, documents: Iterable[Document]) -> tuple[int, int]:
    """Writes one shard; returns the number of documents and the UTF-8 bytes of their texts.

    `path` is anything fsspec opens. No documents give a valid shard of no rows.
    """
    num_documents = num_bytes = 0
    with fsspec.open(path, "wb", auto_mkdir=True) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for group, group_bytes in _row_groups(documents):
            columns = [pa.array(column, pa.string()) for column in zip(*group, strict=True)]
            writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=len(group))
            num_documents += len(group)
            num_bytes += group_bytes
    return num_documents, num_bytes


def read_documents(paths: Iterable[str]) -> Iterator[Document]:
    """Every document of the shards, shard by shard in the order given, each in the order it was written."""
    for path in paths:
        for batch in read_batches(path):
            yield from batch


def read_batches(path: str) -> Iterator[list[Document]]:
    """The documents of one shard, a row group at a time."""
    with fsspec.open(path, "rb") as file:
        try:
            reader = pq.ParquetFile(file)
        except pa.ArrowInvalid as error:
            raise DocumentsError(
                f"{path}: not a Parquet file ({error}); it may be cut short. Remove it and run the step that wrote it."
            ) from error
        names = reader.schema_arrow.names
        wrong = [name for name in SCHEMA.names if names.count(name) != 1]
        if wrong:
            raise DocumentsError(
                f"{path}: columns are {names}, {wrong} missing or there twice; a shard of documents has "
                f"{SCHEMA.names}, all strings."
            )
        for index in range(reader.num_row_groups):
            table = reader.read_row_group(index, columns=SCHEMA.names).cast(SCHEMA)
            columns = (table.column(name).to_pylist() for name in SCHEMA.names)
            yield [Document(*row) for row in zip(*columns, strict=True)]


def _row_groups(documents: Iterable[Document]) -> Iterator[tuple[list[Document], int]]:
    group: list[Document] = []
    group_bytes = 0
    for document in documents:
        try:
            size = len(document.text.encode())
        except UnicodeEncodeError as error:
            raise DocumentsError(
                f"document {document.id!r} of source {document.source!r}: text has no UTF-8 form ({error}); "
                "decode the source strictly, or drop the document and count it."
            ) from error
        group.append(document)
        group_bytes += size
        if len(group) == ROW_GROUP_DOCUMENTS or group_bytes >= ROW_GROUP_BYTES:
            yield group, group_bytes
            group, group_bytes = [], 0
    if group:
        yield group, group_bytes
