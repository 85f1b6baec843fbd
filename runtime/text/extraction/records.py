"""Files of records: JSON lines (plain, gzip, zstd) and Parquet tables; read as streams, whatever their size."""

import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterator
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from runtime.text.extraction.chats import ChatError, chat_text
from runtime.text.extraction.damage import as_damage
from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Extracted, Text, Unreadable, decoded
from runtime.text.extraction.formats import ChatTable, JsonLines, ParquetTable
from runtime.text.extraction.limits import (
    TOO_LARGE,
    Limits,
    Unpacked,
    check_expansion,
    memory_in_use,
    memory_limit,
)

NOT_JSON = "not a JSON object"
NO_TEXT = "no text"
EXCERPT_CHARACTERS = 200
MOST_ROWS, FEWEST_ROWS = 256, 64
"""Rows of a Parquet table that are decoded together; fewer take longer."""
ROWS_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LARGE_WINDOW = "requires too much memory"
"""Arrow's words for a zstd frame with a window above 128 MiB, the most that its codec can be built for."""
_OWN_ANCHOR = re.compile(r"(line|row) \d+")

_Row = tuple[str, dict[str, Any] | Unreadable]
"""Our own anchor of a row, and the row."""


class UnreadableFileError(ValueError):
    """A file whose author has to change it before it can be read."""


class Anchors:
    """Gives each document of a file an anchor of its own."""

    def __init__(self) -> None:
        self._seen: set[int] = set()  # hashes take less memory than ids

    def is_new(self, anchor: str) -> bool:
        """Return whether an id was not given before in this file, and remember it."""
        digest = hashlib.blake2b(anchor.encode(errors="surrogatepass"), digest_size=8).digest()
        num_before = len(self._seen)
        self._seen.add(int.from_bytes(digest, "little"))
        return len(self._seen) > num_before

    def anchor(self, given: str, own: str) -> str:
        """Return the id of a row, followed by the row's own anchor where the id would stand for two documents."""
        while _OWN_ANCHOR.fullmatch(given) or not self.is_new(given):
            given = f"{given} ({own})"
        return given


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
        text = decoded(text)
        if isinstance(text, Unreadable):
            return text._replace(anchor=own)
    if not isinstance(text, str) or not text.strip():  # a blank text is a fault of the export, too
        found = "blank" if isinstance(text, str) else f"a {type(text).__name__}"
        found = found if format_.text_field in row else "absent"
        return Unreadable(own, NO_TEXT, f"field {format_.text_field!r} is {found}", _excerpt(row))
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


def _excerpt(row: dict[str, Any]) -> str:
    def shown(value: object) -> object:
        return value[:EXCERPT_CHARACTERS] if isinstance(value, str | bytes) else value

    return json.dumps({name: shown(value) for name, value in row.items()}, default=str)[:EXCERPT_CHARACTERS]


# JSON lines


def _json_rows(file: IO[bytes], name: str, limits: Limits, shown: str) -> Iterator[_Row]:
    for number, line in enumerate(_lines(file, name, limits, shown), start=1):
        own = f"line {number}"
        if line is None:
            yield own, _too_large(own, limits)
        elif line.strip():
            yield own, _json_row(line)


def _json_row(line: bytes) -> dict[str, Any] | Unreadable:
    try:
        # A tenth of the memory that the standard library takes for a long line with escapes.
        row = from_json(line.removeprefix(_BYTE_ORDER_MARK))
        if isinstance(row, dict):
            return row
    except ValueError:
        pass
    # The standard library takes lone surrogates, or says what is wrong with the line.
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


class _Counted(io.RawIOBase):
    """A file that counts the bytes read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self.num_bytes += len(data)
        buffer[: len(data)] = data
        return len(data)


def _lines(file: IO[bytes], name: str, limits: Limits, shown: str) -> Iterator[bytes | None]:
    """Yield each line; None for one above `limits.max_document_bytes`, which is never held whole.

    Raises:
        DamagedFileError: the file has no bytes, cannot be unpacked, or unpacks to more than `limits` allow.
    """
    packed = _Counted(file)
    with as_damage(f"{shown}: cannot be unpacked", "it is cut short or not what its name says. Fetch it again."):
        try:
            yield from _split(_unpacked(packed, name, limits, shown), limits.max_document_bytes)
        except OSError as error:
            if _LARGE_WINDOW not in str(error):
                raise
            raise DamagedFileError(
                f"{shown}: was packed with a window above 128 MiB (`zstd --long`), which this reader cannot unpack. "
                "Pack it again: zstd -d --long=31 -c FILE | zstd -o NEW_FILE"
            ) from error
    if not packed.num_bytes:
        raise DamagedFileError(f"{shown}: holds no bytes: its upload was cut short. Fetch it again, or leave it out.")


def _unpacked(packed: _Counted, name: str, limits: Limits, shown: str) -> io.RawIOBase:
    if name.endswith(".gz"):
        file = cast(IO[bytes], io.BufferedReader(packed, _BLOCK_BYTES))
        return Unpacked(gzip.open(file), lambda: packed.num_bytes, shown, limits)
    if name.endswith(".zst"):
        # Arrow's codec: the standard library has none before Python 3.14.
        stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
        return Unpacked(stream, lambda: packed.num_bytes, shown, limits)
    return packed


def _split(stream: io.RawIOBase, max_bytes: int) -> Iterator[bytes | None]:
    """Yield lines in time linear in their length, however long they are."""
    pieces: list[bytes] = []
    size = 0
    while block := stream.read(_BLOCK_BYTES):
        *ended, rest = block.split(b"\n")
        for end in ended:
            size += len(end)
            yield b"".join([*pieces, end]) if size <= max_bytes else None
            pieces, size = [], 0
        size += len(rest)
        pieces.append(rest)
        if size > max_bytes:
            pieces.clear()
    if size:
        yield b"".join(pieces) if size <= max_bytes else None


# Parquet


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
        check_expansion(name, packed, unpacked, limits)
        # A page may hold each of its values once and name it for many rows.
        is_dense = unpacked > limits.max_expansion * packed
        num_rows = 1 if is_dense else max(FEWEST_ROWS, min(MOST_ROWS, ROWS_BYTES // max(unpacked, 1)))
        batches = table.iter_batches(num_rows, row_groups=[group], columns=columns)
        while (batch := _next_batch(batches, f"{name}: cannot be read after row {number:,}", limits)) is not None:
            # One value may stand for many rows of a page.
            num_bytes += batch.nbytes
            check_expansion(name, size, num_bytes, limits)
            for row in _rows(batch):
                number += 1
                yield f"row {number}", row


def _sizes(group: pq.RowGroupMetaData, columns: list[str]) -> tuple[int, int]:
    """Return the packed and unpacked bytes of the columns of a row group."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]
    return sum(chunk.total_compressed_size for chunk in chunks), sum(chunk.total_uncompressed_size for chunk in chunks)


def _next_batch(batches: Iterator[pa.RecordBatch], problem: str, limits: Limits) -> pa.RecordBatch | None:
    """Return the next rows. The memory is limited, because headers of pages may claim any size."""
    try:
        with (
            as_damage(problem, "it is damaged. Fetch it again."),
            memory_limit(memory_in_use() + limits.max_document_memory),
        ):
            return next(batches, None)
    except MemoryError as error:
        raise DamagedFileError(
            f"{problem}: its next rows take more than {limits.max_document_memory:,} bytes, "
            "`limits.max_document_memory`. Leave the file out, or raise the limit."
        ) from error


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Unreadable]:
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
