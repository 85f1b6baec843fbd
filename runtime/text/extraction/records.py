"""Files of records: JSON lines (plain, gzip, zstd) and Parquet tables; read as streams, whatever their size."""

import gzip
import hashlib
import json
from array import array
from collections.abc import Iterator
from itertools import count
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.text.extraction.damage import as_damage
from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Extracted, Text, Unreadable, decoded
from runtime.text.extraction.formats import ChatTable, JsonLines, ParquetTable

NOT_JSON = "not a JSON object"
NO_TEXT = "no text"
EXCERPT_CHARACTERS = 200


class UnreadableFileError(ValueError):
    """A file whose author has to change it before it can be read."""


def read_json_lines(file: IO[bytes], name: str, format_: JsonLines) -> Extracted:
    """Yield one document a line.

    Raises:
        UnreadableFileError: at the end of the file, if `unique_ids` and two lines have one id; takes 16 bytes a line.
    """
    keys, numbers = array("Q"), array("Q")
    for number, line in enumerate(_lines(file, name), start=1):
        if not line.strip():
            continue
        found = _from_line(line, f"line {number}", format_)
        if format_.unique_ids and isinstance(found, Text):
            digest = hashlib.blake2b(found.anchor.encode(errors="surrogatepass"), digest_size=8).digest()
            keys.append(int.from_bytes(digest, "big"))
            numbers.append(number)
        yield found
    _check_unique(np.array(keys, np.uint64), np.array(numbers, np.uint64), name, format_.id_field)


def _from_line(line: bytes, anchor: str, format_: JsonLines) -> Text | Unreadable:
    text = decoded(line)
    if isinstance(text, Unreadable):
        return text._replace(anchor=anchor)
    try:
        row = json.loads(text)
        if isinstance(row, dict):
            return _from_row(row, anchor, format_.text_field, format_.id_field)
        return Unreadable(anchor, NOT_JSON, f"a {type(row).__name__}", text[:EXCERPT_CHARACTERS])
    except (ValueError, RecursionError) as error:
        return Unreadable(anchor, NOT_JSON, str(error), text[:EXCERPT_CHARACTERS])


def _check_unique(keys: np.ndarray, numbers: np.ndarray, name: str, id_field: str | None) -> None:
    order = np.argsort(keys, kind="stable")
    repeats = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if len(repeats):
        first, second = numbers[order][repeats[0] : repeats[0] + 2].tolist()
        raise UnreadableFileError(
            f"{name}: line {second} has the {id_field} of line {first}; each document of a file needs its own. Change "
            f"one of them, or leave {id_field!r} out of the lines: line numbers then take its place."
        )


def read_parquet(file: IO[bytes], name: str, format_: ParquetTable) -> Extracted:
    for anchor, row in _parquet_rows(file, name, format_.text_field, format_.id_field):
        yield _from_row(row, anchor, format_.text_field, format_.id_field) if isinstance(row, dict) else row


def read_chats(file: IO[bytes], name: str, format_: ChatTable) -> Extracted:
    """Yield conversations as turns, `User: ...` and `Assistant: ...`, with a blank line between them.

    A turn without role or content makes its conversation unreadable.
    """
    field = format_.messages_field
    for anchor, row in _parquet_rows(file, name, field, format_.id_field):
        if isinstance(row, Unreadable):
            yield row
            continue
        turns = row[field]
        fault = "is none" if not isinstance(turns, list) else next(filter(None, map(_fault, turns, count(1))), None)
        if fault is not None:
            yield Unreadable(anchor, NO_TEXT, f"field {field!r} {fault}", _excerpt(row))
            continue
        text = "\n\n".join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns)
        yield _from_row({**row, field: text}, anchor, field, format_.id_field)


def _fault(turn: Any, number: int) -> str | None:
    """Return what is wrong with a turn."""
    if not isinstance(turn, dict):
        return f"has a {type(turn).__name__} as turn {number}, and no role and content"
    found = next((name for name in ("role", "content") if not isinstance(turn.get(name), str)), None)
    return found and f"has a turn {number} whose {found} is a {type(turn.get(found)).__name__}"


def _parquet_rows(
    file: IO[bytes], name: str, field: str, id_field: str | None
) -> Iterator[tuple[str, dict[str, Any] | Unreadable]]:
    """Yield anchor and row; checksums of pages are verified where their writer stored them."""
    with as_damage(f"{name}: no Parquet file", "it is cut short or damaged. Fetch it again."):
        table = pq.ParquetFile(file, page_checksum_verification=True)
        names = table.schema_arrow.names
    if field not in names:
        raise DamagedFileError(f"{name}: columns are {names}; none is {field!r}. Name the column that holds the text.")
    columns = [field] if id_field is None or id_field not in names else [field, id_field]
    if repeated := next((column for column in columns if names.count(column) > 1), None):
        raise DamagedFileError(f"{name}: {names.count(repeated)} columns are named {repeated!r}. Rename all but one.")
    batches = table.iter_batches(batch_size=4_096, columns=columns)
    number = 0
    while True:
        with as_damage(f"{name}: cannot be read after row {number:,}", "it is damaged. Fetch it again."):
            batch = next(batches, None)
        if batch is None:
            return
        for row in _rows(batch):
            number += 1
            anchor = f"row {number}"
            yield anchor, row._replace(anchor=anchor) if isinstance(row, Unreadable) else row


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


def _from_row(row: dict[str, Any], anchor: str, text_field: str, id_field: str | None) -> Text | Unreadable:
    text = row.get(text_field)
    if not isinstance(text, str):
        found = "absent" if text_field not in row else f"a {type(text).__name__}"
        return Unreadable(anchor, NO_TEXT, f"field {text_field!r} is {found}", _excerpt(row))
    if not text.strip():  # like a row without the field, a fault of the export
        return Unreadable(anchor, NO_TEXT, f"field {text_field!r} is blank", _excerpt(row))
    given = row.get(id_field) if id_field is not None else None
    return Text(anchor if given is None else str(given), text)


def _excerpt(row: dict[str, Any]) -> str:
    return json.dumps(row, default=str)[:EXCERPT_CHARACTERS]


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    with as_damage(f"{name}: cannot be unpacked", "it is cut short or not what its name says. Fetch it again."):
        if name.endswith(".gz"):
            with gzip.open(file) as lines:
                yield from lines
        elif name.endswith(".zst"):
            # Arrow's codec: the standard library has none before Python 3.14.
            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
                yield from _split(stream)
        else:
            yield from file


def _split(stream: Any) -> Iterator[bytes]:
    """Yield lines in time linear in their length, however long they are."""
    pieces: list[bytes] = []
    while block := stream.read(1 << 20):
        end, *lines = block.split(b"\n")
        pieces.append(end)
        if lines:
            yield b"".join(pieces)
            *lines, rest = lines
            yield from lines
            pieces = [rest]
    if rest := b"".join(pieces):
        yield rest
