"""Rows of Parquet tables, decoded a few at a time, with limits of time and memory."""

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.text.extraction.damage import as_damage
from runtime.text.extraction.extracted import NO_TEXT, NOT_UTF8, DamagedFileError, Unreadable
from runtime.text.extraction.guard import Guard, Guarded
from runtime.text.extraction.limits import Limits, check_expansion, memory_bound, time_limit

MOST_ROWS, FEWEST_ROWS = 256, 64
"""Rows that are decoded together; fewer take longer."""
ROWS_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_NAMED = 20
_SMALL_FOOTER_BYTES = 1 << 12
"""A footer that is read whatever the limit for documents is."""
_TAIL_BYTES = 8
"""Length of the footer and the magic number."""

Row = dict[str, Any] | Unreadable


def read_rows(
    file: IO[bytes], name: str, field: str, id_field: str | None, limits: Limits, guard: Guard
) -> Iterator[tuple[str, Row]]:
    """Yield anchor and row; checksums of pages are verified where their writer stored them."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - _TAIL_BYTES, 0))
    # Arrow limits the columns, and the row groups, to a million; it would abort the process for want of memory.
    most = max(limits.max_document_bytes, _SMALL_FOOTER_BYTES)
    if (footer := int.from_bytes(file.read(4), "little")) > most and size > footer:
        raise DamagedFileError(
            f"{name}: its footer has {footer:,} bytes, above `limits.max_document_bytes` of "
            f"{limits.max_document_bytes:,}. Leave the file out, or raise the limit."
        )
    with as_damage(f"{name}: no Parquet file", "it is cut short or damaged. Fetch it again."):
        table = pq.ParquetFile(file, page_checksum_verification=True)
    columns = _columns(table, name, field, id_field)
    before = num_bytes = 0
    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(_copied(file)) if isinstance(guard, Guarded) else None
        for group in range(table.num_row_groups):
            metadata = table.metadata.row_group(group)
            packed, unpacked = _sizes(metadata, columns)
            check_expansion(name, packed, unpacked, limits)
            # A page may hold each of its values once and name it for many rows.
            is_dense = unpacked > limits.max_expansion * packed
            num_rows = 1 if is_dense else max(FEWEST_ROWS, min(MOST_ROWS, ROWS_BYTES // max(unpacked, 1)))
            own, problem = f"row group {group + 1}", f"{name}: cannot be read after row {before:,}"
            if copy is None:
                parts = _parts(table, group, columns, num_rows, problem, limits)
            else:
                arguments = (copy, group, columns, num_rows, problem, limits)
                parts = guard(_parts_of_copy, *arguments, anchor=own, name=f"{name}, {own}", data=b"")
            number = before
            for part in parts:
                if isinstance(part, Unreadable):
                    yield own, part
                    break
                for row in part:
                    # One value of a page or of a dictionary may stand for many rows.
                    num_bytes += 0 if isinstance(row, Unreadable) else _length(row)
                    check_expansion(name, size, num_bytes, limits)
                    number += 1
                    yield f"row {number}", row
            before += metadata.num_rows


def _columns(table: pq.ParquetFile, name: str, field: str, id_field: str | None) -> list[str]:
    names = table.schema_arrow.names
    if field not in names:
        shown = f"{names[:_NAMED]} and {len(names) - _NAMED:,} more" if len(names) > _NAMED else names
        raise DamagedFileError(f"{name}: columns are {shown}; none is {field!r}. Name the column that holds the text.")
    columns = [field] if id_field is None or id_field not in names else [field, id_field]
    if repeated := next((column for column in columns if names.count(column) > 1), None):
        raise DamagedFileError(f"{name}: {names.count(repeated)} columns are named {repeated!r}. Rename all but one.")
    return columns


@contextlib.contextmanager
def _copied(file: IO[bytes]) -> Iterator[str]:
    """Yield the path of a copy that another process can open."""
    file.seek(0)
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BLOCK_BYTES)
        copy.flush()
        yield copy.name


def _parts_of_copy(path: str, *arguments: Any) -> Iterator[list[Row]]:
    with pq.ParquetFile(path, page_checksum_verification=True) as table:
        yield from _parts(table, *arguments)


def _parts(
    table: pq.ParquetFile, group: int, columns: list[str], num_rows: int, problem: str, limits: Limits
) -> Iterator[list[Row]]:
    """Yield rows within limits of time and memory, since page headers may claim any size."""
    batches = table.iter_batches(num_rows, row_groups=[group], columns=columns)
    while True:
        with (
            as_damage(problem, "it is damaged. Fetch it again."),
            time_limit(limits.max_document_seconds),
            memory_bound(f"{problem}: its next rows", limits),
        ):
            batch = next(batches, None)
            part = None if batch is None else list(_rows(batch))
        if part is None:
            return
        yield part


def _sizes(group: pq.RowGroupMetaData, columns: list[str]) -> tuple[int, int]:
    """Return the packed and unpacked bytes of the columns of a row group."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(tuple(f"{name}." for name in columns))]
    return sum(chunk.total_compressed_size for chunk in chunks), sum(chunk.total_uncompressed_size for chunk in chunks)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError):  # Arrow does not check that strings are UTF-8 and dates are dates
        pass
    for index in range(batch.num_rows):
        try:
            (row,) = batch.slice(index, 1).to_pylist()
        except (ValueError, OverflowError) as error:
            row = Unreadable("", NOT_UTF8 if isinstance(error, UnicodeDecodeError) else NO_TEXT, str(error), "")
        yield row


def _length(value: object) -> int:
    """Return the characters or bytes of the texts in a value."""
    match value:
        case str() | bytes():
            return len(value)
        case list():
            return sum(map(_length, value))
        case dict():
            return sum(map(_length, value.values()))
    return 0
