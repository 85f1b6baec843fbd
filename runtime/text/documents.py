"""Documents: Parquet shards of `id`, `text`, `source`, `metadata`; equal documents give equal bytes.

Row groups depend on the documents alone, and the file holds no index, date or host. Reading and writing hold one row
group in memory, so a shard may have any size. A sample has the documents whose keys are lowest, however they are cut
into shards.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("id", "text", "source", "metadata")])
ROW_GROUP_DOCUMENTS = 4_096
ROW_GROUP_BYTES = 8 << 20
EVERY_KEY = 1 << 64
_BYTES_MARGIN, _FEWEST_DOCUMENTS = 4, 1_000


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


def sample_key(document: Document) -> int:
    """Return a document's place in the order in which samples take documents: the hash of its id without the source.

    The source is a digest, which changes with the code of `extract`. A sample of equal documents stays the same.
    """
    own = document.id.removeprefix(document.source)
    return int.from_bytes(hashlib.blake2b(own.encode(), digest_size=8).digest(), "big")


def size_of(document: Document) -> int:
    """Return the UTF-8 bytes of the text."""
    return len(document.text.encode())


def key_limit(wanted_bytes: int, *, num_bytes: int, num_documents: int) -> int:
    """Return a key below which a source holds about four times the wanted bytes, and 1,000 documents or all."""
    share = max(_BYTES_MARGIN * wanted_bytes / max(num_bytes, 1), _FEWEST_DOCUMENTS / max(num_documents, 1))
    return int(min(share, 1.0) * EVERY_KEY)


def sampled(documents: Iterable[Document], *, below: int, num_bytes: int) -> list[Document]:
    """Return the documents with the lowest keys below `below` that make up `num_bytes`, in the order given.

    Memory holds `num_bytes` and one document more. Taking the lowest keys of each shard's sample gives the sample of
    the whole source.
    """
    heap: list[tuple[int, int, Document]] = []
    total = 0
    for place, document in enumerate(documents):
        key = sample_key(document)
        if key < below and document.text:
            heapq.heappush(heap, (-key, place, document))
            total += size_of(document)
            while total - size_of(heap[0][2]) >= num_bytes:
                total -= size_of(heapq.heappop(heap)[2])
    return [document for _, _, document in sorted(heap, key=lambda entry: entry[1])]


def last_key(keys_and_sizes: Iterable[tuple[int, int]], num_bytes: int) -> int:
    """Return the last key that a sample of `num_bytes` takes; -1 without documents."""
    last, taken = -1, 0
    for key, size in sorted(keys_and_sizes):
        if taken >= num_bytes:
            break
        last, taken = key, taken + size
    return last
