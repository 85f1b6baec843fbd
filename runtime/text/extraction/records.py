"""Files of records: JSON lines (plain, gzip, zstd) and Parquet tables; read as streams, whatever their size."""

import io
import json
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from runtime.text.extraction.anchors import Anchors
from runtime.text.extraction.chats import ChatError, chat_text
from runtime.text.extraction.damage import as_damage
from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Extracted, Text, Unreadable, decoded
from runtime.text.extraction.formats import ChatTable, JsonLines, ParquetTable
from runtime.text.extraction.limits import FREE_BYTES, TOO_LARGE, Limits
from runtime.text.extraction.lines import lines_of

NOT_JSON = "not a JSON object"
NO_TEXT = "no text"
EXCERPT_CHARACTERS = 200
MOST_ROWS, FEWEST_ROWS = 256, 64
"""Rows of a Parquet table that are decoded together; fewer take longer."""
ROWS_BYTES = 64 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_Row = tuple[str, dict[str, Any] | Unreadable]
"""Our own anchor of a row, and the row."""


class UnreadableFileError(ValueError):
    """A file whose author has to change it before it can be read."""


def read_json_lines(file: IO[bytes], name: str, format_: JsonLines, limits: Limits, *, shown: str) -> Extracted:
    """Yield one document a line. `name` says how the file is packed; messages have `shown`.

    Raises:
        UnreadableFileError: `unique_ids` is set and two lines have one id.
    """
    anchors = Anchors()
    for own, row in _json_rows(file, name, limits, shown):
        yield _document(own, row, format_, anchors, limits, shown)


def read_parquet(file: IO[bytes], format_: ParquetTable, limits: Limits, *, shown: str) -> Extracted:
    """Yield one document a row; messages have `shown`."""
    anchors = Anchors()
    for own, row in _parquet_rows(file, shown, format_.text_field, format_.id_field, limits):
        yield _document(own, row, format_, anchors, limits, shown)


def read_chats(file: IO[bytes], name: str, format_: ChatTable, limits: Limits, *, shown: str) -> Extracted:
    """Yield conversations as `chat_text` writes them, from JSON lines or a Parquet table, as `name` says."""
    anchors, field = Anchors(), format_.messages_field
    if name.endswith((".jsonl", ".json", ".gz", ".zst")):
        rows = _json_rows(file, name, limits, shown)
    else:
        rows = _parquet_rows(file, shown, field, format_.id_field, limits)
    as_text = ParquetTable(text_field=field, id_field=format_.id_field)
    for own, row in rows:
        if not isinstance(row, Unreadable):
            try:
                row = {**row, field: chat_text(row.get(field))}
            except (ChatError, UnicodeDecodeError) as error:
                row = Unreadable(own, NO_TEXT, f"field {field!r} {error}", _excerpt(row))
        yield _document(own, row, as_text, anchors, limits, shown)


def _document(
    own: str,
    row: dict[str, Any] | Unreadable,
    format_: JsonLines | ParquetTable,
    anchors: Anchors,
    limits: Limits,
    name: str,
) -> Text | Unreadable:
    if isinstance(row, Unreadable):
        return row._replace(anchor=own)
    text = row.get(format_.text_field)
    if isinstance(text, bytes):
        found = decoded(text)
        if isinstance(found, Unreadable):
            return found._replace(anchor=own)
        text = found
    if not isinstance(text, str):
        found = "absent" if format_.text_field not in row else f"a {type(text).__name__}"
        return Unreadable(own, NO_TEXT, f"field {format_.text_field!r} is {found}", _excerpt(row))
    if not text.strip():  # like a row without the field, a fault of the export
        return Unreadable(own, NO_TEXT, f"field {format_.text_field!r} is blank", _excerpt(row))
    if 4 * len(text) > limits.max_document_bytes < len(text.encode(errors="surrogatepass")):
        return _too_large(own, limits)
    given = row.get(format_.id_field) if format_.id_field is not None else None
    if given is None:
        return Text(own, text)
    anchor = given.decode(errors="backslashreplace") if isinstance(given, bytes) else str(given)
    if isinstance(format_, JsonLines) and format_.unique_ids and not anchors.is_new(anchor):
        raise UnreadableFileError(
            f"{name}: {own} has the {format_.id_field} {anchor!r} of an earlier line; each document of a file needs "
            f"its own. Change one of them, or leave {format_.id_field!r} out of the lines: line numbers then take its "
            "place."
        )
    return Text(anchors.anchor(anchor, own), text)


def _too_large(own: str, limits: Limits) -> Unreadable:
    return Unreadable(own, TOO_LARGE, f"more than {limits.max_document_bytes:,} bytes", "")


def _json_rows(file: IO[bytes], name: str, limits: Limits, shown: str) -> Iterator[_Row]:
    for number, line in enumerate(lines_of(file, name, limits, shown), start=1):
        own = f"line {number}"
        if line is None:
            yield own, _too_large(own, limits)
        elif line.strip():
            yield own, _json_row(line)


def _json_row(line: bytes) -> dict[str, Any] | Unreadable:
    try:
        # A tenth of the memory that the standard library takes for a long line with escapes.
        row = from_json(line.removeprefix(_BYTE_ORDER_MARK))
    except ValueError:
        return _odd_json_row(line)
    return row if isinstance(row, dict) else _odd_json_row(line)


def _odd_json_row(line: bytes) -> dict[str, Any] | Unreadable:
    """Read a line as the standard library does, which takes lone surrogates; or say what is wrong with it."""
    text = decoded(line)
    if isinstance(text, Unreadable):
        return text
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable("", NOT_JSON, str(error), text[:EXCERPT_CHARACTERS])
    if isinstance(row, dict):
        return row
    return Unreadable("", NOT_JSON, f"a {type(row).__name__}", text[:EXCERPT_CHARACTERS])


def _parquet_rows(file: IO[bytes], name: str, field: str, id_field: str | None, limits: Limits) -> Iterator[_Row]:
    """Yield anchor and row; checksums of pages are verified where their writer stored them."""
    size = file.seek(0, io.SEEK_END)
    with as_damage(f"{name}: no Parquet file", "it is cut short or damaged. Fetch it again."):
        table = pq.ParquetFile(file, page_checksum_verification=True)
        names = table.schema_arrow.names
    if field not in names:
        raise DamagedFileError(f"{name}: columns are {names}; none is {field!r}. Name the column that holds the text.")
    columns = [field] if id_field is None or id_field not in names else [field, id_field]
    if repeated := next((column for column in columns if names.count(column) > 1), None):
        raise DamagedFileError(f"{name}: {names.count(repeated)} columns are named {repeated!r}. Rename all but one.")
    number = num_bytes = 0
    for group in range(table.num_row_groups):
        packed, unpacked = _sizes(table.metadata.row_group(group), columns)
        _check_expansion(name, packed, unpacked, limits)
        batches = table.iter_batches(_rows_together(packed, unpacked, limits), row_groups=[group], columns=columns)
        while True:
            with as_damage(f"{name}: cannot be read after row {number:,}", "it is damaged. Fetch it again."):
                batch = next(batches, None)
            if batch is None:
                break
            # One value may stand for many rows of a page.
            num_bytes += batch.nbytes
            _check_expansion(name, size, num_bytes, limits)
            for row in _rows(batch):
                number += 1
                yield f"row {number}", row


def _sizes(group: pq.RowGroupMetaData, columns: list[str]) -> tuple[int, int]:
    """Return the packed and unpacked bytes of the columns of a row group."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]
    return sum(chunk.total_compressed_size for chunk in chunks), sum(chunk.total_uncompressed_size for chunk in chunks)


def _rows_together(packed: int, unpacked: int, limits: Limits) -> int:
    # A page may hold each of its values once and name it for many rows.
    if unpacked > limits.max_expansion * packed:
        return 1
    return max(FEWEST_ROWS, min(MOST_ROWS, ROWS_BYTES // max(unpacked, 1)))


def _check_expansion(name: str, packed: int, unpacked: int, limits: Limits) -> None:
    if unpacked > FREE_BYTES and unpacked > limits.max_expansion * packed:
        raise DamagedFileError(
            f"{name}: {packed:,} bytes unpack to more than {unpacked:,}, above `limits.max_expansion` of "
            f"{limits.max_expansion:,}. Leave the file out, or raise the limit."
        )


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Unreadable]:
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):  # Arrow does not check that strings are UTF-8 and dates are dates
        rows = None
    if rows is not None:
        yield from rows
        return
    for index in range(batch.num_rows):
        try:
            (row,) = batch.slice(index, 1).to_pylist()
        except (ValueError, OverflowError) as error:
            row = Unreadable("", NOT_UTF8 if isinstance(error, UnicodeDecodeError) else NO_TEXT, str(error), "")
        yield row


def _excerpt(row: dict[str, Any]) -> str:
    return json.dumps({name: _shown(value) for name, value in row.items()}, default=str)[:EXCERPT_CHARACTERS]


def _shown(value: object) -> object:
    return value[:EXCERPT_CHARACTERS] if isinstance(value, str | bytes) else value
