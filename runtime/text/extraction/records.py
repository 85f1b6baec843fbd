"""Files of records: JSON lines (plain, gzip, zstd) and Parquet tables; read as streams, whatever their size."""

import contextlib
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

from runtime.text.extraction.damage import damage_told
from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Extracted, Text, Unreadable, decoded

NOT_JSON = "not a JSON object"
NO_TEXT = "no text"
EXCERPT_CHARACTERS = 200


class UnreadableFileError(ValueError):
    """A file that may not be read as it is: the person who wrote it has to change it."""


def read_json_lines(
    file: IO[bytes], name: str, *, text_field: str, id_field: str | None, unique_ids: bool = False
) -> Extracted:
    """One document a line. With `unique_ids` the file is read to its end first, holding 16 bytes a document."""
    if unique_ids and id_field is not None:
        _refuse_one_id_twice(file, name, id_field)
    for number, line in enumerate(_lines(file, name), start=1):
        if not line.strip():
            continue
        anchor = f"line {number}"
        text = decoded(line)
        if isinstance(text, Unreadable):
            yield text._replace(anchor=anchor)
            continue
        try:
            row = json.loads(text)
            if isinstance(row, dict):
                found = _from_row(row, anchor, text_field, id_field)
            else:
                found = Unreadable(anchor, NOT_JSON, f"a {type(row).__name__}", text[:EXCERPT_CHARACTERS])
        except (ValueError, RecursionError) as error:
            found = Unreadable(anchor, NOT_JSON, str(error), text[:EXCERPT_CHARACTERS])
        yield found


def _refuse_one_id_twice(file: IO[bytes], name: str, id_field: str) -> None:
    keys, numbers = array("Q"), array("Q")
    for number, identifier in _ids(file, name, id_field):
        keys.append(_key(identifier))
        numbers.append(number)
    order = np.argsort(np.frombuffer(keys, np.uint64), kind="stable")
    ordered = np.frombuffer(keys, np.uint64)[order]
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not suspects:
        file.seek(0)
        return
    # Now by the ids themselves: two of them may have one hash.
    first: dict[str, int] = {}
    file.seek(0)
    for number, identifier in _ids(file, name, id_field):
        if _key(identifier) in suspects and first.setdefault(identifier, number) != number:
            raise UnreadableFileError(
                f"{name}: line {number} has the {id_field} {identifier!r} of line {first[identifier]}; documents of "
                f"one file have ids of their own. Change one of them, or leave {id_field!r} out of the lines: their "
                "numbers then stand in."
            )
    file.seek(0)


def _ids(file: IO[bytes], name: str, id_field: str) -> Iterator[tuple[int, str]]:
    """Number of the line and id, of the lines that have one, up to where the file is damaged."""
    # What cannot be read is told when it is its turn: what comes before it stays.
    with contextlib.suppress(DamagedFileError):
        for number, line in enumerate(_lines(file, name), start=1):
            try:
                row = json.loads(line.decode("utf-8-sig"))
                identifier = str(row[id_field]) if isinstance(row, dict) and row.get(id_field) is not None else None
            except (ValueError, RecursionError):
                continue
            if identifier is not None:
                yield number, identifier


def _key(identifier: str) -> int:
    return int.from_bytes(hashlib.blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def read_parquet(file: IO[bytes], name: str, *, text_field: str, id_field: str | None) -> Extracted:
    for anchor, row in _parquet_rows(file, name, text_field, id_field):
        yield _from_row(row, anchor, text_field, id_field) if isinstance(row, dict) else row


def read_chats(file: IO[bytes], name: str, *, messages_field: str, id_field: str | None) -> Extracted:
    """Turns as `User: ...` and `Assistant: ...`, a blank line between them.

    A turn without a role or content makes the whole unreadable: it would stand there as if somebody had said it.
    """
    for anchor, row in _parquet_rows(file, name, messages_field, id_field):
        if isinstance(row, Unreadable):
            yield row
            continue
        turns = row[messages_field]
        fault = "is none" if not isinstance(turns, list) else next(filter(None, map(_fault, turns, count(1))), None)
        if fault is not None:
            yield Unreadable(anchor, NO_TEXT, f"field {messages_field!r} {fault}", _excerpt(row))
            continue
        text = "\n\n".join(f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns)
        yield _from_row({**row, messages_field: text}, anchor, messages_field, id_field)


def _fault(turn: Any, number: int) -> str | None:
    """What keeps a turn from being one."""
    if not isinstance(turn, dict):
        return f"has a {type(turn).__name__} as turn {number}, and no role and content"
    found = next((name for name in ("role", "content") if not isinstance(turn.get(name), str)), None)
    return found and f"has a turn {number} whose {found} is a {type(turn.get(found)).__name__}"


def _parquet_rows(
    file: IO[bytes], name: str, field: str, id_field: str | None
) -> Iterator[tuple[str, dict[str, Any] | Unreadable]]:
    """Checksums of pages are held against the pages, where their writer left any."""
    with damage_told(f"{name}: not a Parquet file", "it is cut short or damaged: fetch it anew."):
        table = pq.ParquetFile(file, page_checksum_verification=True)
        names = table.schema_arrow.names
    if field not in names:
        raise DamagedFileError(f"{name}: columns are {names}; none is {field!r}. Name the column that holds the text.")
    columns = [field] if id_field is None or id_field not in names else [field, id_field]
    if twice := next((column for column in columns if names.count(column) > 1), None):
        raise DamagedFileError(
            f"{name}: {names.count(twice)} columns are named {twice!r}, and only one can be meant, of {names}. Rename "
            "the others."
        )
    batches = table.iter_batches(batch_size=4_096, columns=columns)
    number = 0
    while True:
        cure = f"it is damaged behind row {number:,}: fetch it anew."
        with damage_told(f"{name}: cannot be read to its end", cure):
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
    except (ValueError, OverflowError):  # a string that is no UTF-8, a date that is none: Arrow checks none of them
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
    if not text.strip():  # a row with nothing to say is a fault of the export, as one without the field is
        return Unreadable(anchor, NO_TEXT, f"field {text_field!r} is blank", _excerpt(row))
    given = row.get(id_field) if id_field is not None else None
    return Text(anchor if given is None else str(given), text)


def _excerpt(row: dict[str, Any]) -> str:
    return json.dumps(row, default=str)[:EXCERPT_CHARACTERS]


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    with damage_told(f"{name}: cannot be unpacked", "it is cut short or not what its name says: fetch it anew."):
        if name.endswith(".gz"):
            with gzip.open(file) as lines:
                yield from lines
        elif name.endswith(".zst"):
            # Arrow's own codec: the standard library has none before Python 3.14.
            with pa.CompressedInputStream(pa.PythonFile(_LeftOpen(file), mode="r"), "zstd") as stream:
                yield from _split(stream)
        else:
            yield from file


class _LeftOpen:
    """A file that Arrow, which closes what it reads of, does not close: it may be read a second time."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.read = file.read

    def close(self) -> None:
        pass


def _split(stream: Any) -> Iterator[bytes]:
    """The lines, each byte of which is looked at once, however long they are."""
    begun: list[bytes] = []
    while block := stream.read(1 << 20):
        end, *lines = block.split(b"\n")
        begun.append(end)
        if lines:
            yield b"".join(begun)
            *lines, rest = lines
            yield from lines
            begun = [rest]
    if rest := b"".join(begun):
        yield rest
