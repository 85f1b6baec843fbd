"""Files of records: JSON lines (plain, gzip, zstd) and Parquet tables; read as streams, whatever their size."""

import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from pydantic_core import from_json

from runtime.text.extraction.chats import ChatError, chat_text
from runtime.text.extraction.damage import as_damage
from runtime.text.extraction.extracted import NO_TEXT, Extracted, Text, Unreadable, decoded, no_bytes
from runtime.text.extraction.formats import ChatTable, JsonLines, ParquetTable
from runtime.text.extraction.guard import Guard, Guarded
from runtime.text.extraction.limits import TOO_LARGE, Limits, Stream, Unpacked, unpack_zstd
from runtime.text.extraction.parquet_rows import Row, read_rows

NOT_JSON = "not a JSON object"
EXCERPT_CHARACTERS = 200
MEMORY_PER_BYTE = 40
"""The most memory that a byte of JSON takes, in nested objects. Without enough memory the parser aborts the process,
so lines that may take more than the limit are not parsed."""
_JSON_SUFFIXES = (".jsonl", ".json", ".gz", ".zst")
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OWN_ANCHOR = re.compile(r"(line|row) \d+")


Records = JsonLines | ParquetTable | ChatTable


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

    def anchor(self, given: str, own: str, *, unique: bool = False) -> str | None:
        """Return the id of a row, followed by the row's own anchor where the id would stand for two documents.

        Return None for an id that has to be unique and is not.
        """
        is_new = self.is_new(given)
        if unique and not is_new:
            return None
        while _OWN_ANCHOR.fullmatch(given) or not is_new:
            given = f"{given} ({own})"
            is_new = self.is_new(given)
        return given


def read_records(
    file: IO[bytes], name: str, format_: Records, limits: Limits, guard: Guard, *, shown: str
) -> Extracted:
    """Yield one document a line or row. The suffix of `name` says how the file is packed; messages name `shown`.

    Raise UnreadableFileError if `unique_ids` is set and two lines have one id.
    """
    anchors = Anchors()
    field = format_.messages_field if isinstance(format_, ChatTable) else format_.text_field
    if isinstance(format_, JsonLines) or (isinstance(format_, ChatTable) and name.endswith(_JSON_SUFFIXES)):
        rows = _json_rows(file, name, limits, guard, shown)
    else:
        rows = read_rows(file, shown, field, format_.id_field, limits, guard)
    for own, row in rows:
        if isinstance(format_, ChatTable) and not isinstance(row, Unreadable):
            try:
                row = {**row, field: chat_text(row.get(field))}
            except (ChatError, UnicodeDecodeError) as error:
                row = Unreadable(own, NO_TEXT, f"field {field!r} {error}", _excerpt(row))
        yield _document(own, row, format_, field, anchors, limits, shown)


def _document(
    own: str, row: Row, format_: Records, field: str, anchors: Anchors, limits: Limits, name: str
) -> Text | Unreadable:
    if isinstance(row, Unreadable):
        return row._replace(anchor=own)
    text = row.get(field)
    if isinstance(text, bytes):
        text = decoded(text)
        if isinstance(text, Unreadable):
            return text._replace(anchor=own)
    if not isinstance(text, str) or not text.strip():  # a blank text is a fault of the export, too
        found = "blank" if isinstance(text, str) else f"a {type(text).__name__}"
        found = found if field in row else "absent"
        return Unreadable(own, NO_TEXT, f"field {field!r} is {found}", _excerpt(row))
    if 4 * len(text) > limits.max_document_bytes < len(text.encode(errors="surrogatepass")):
        return Unreadable(own, TOO_LARGE, f"more than {limits.max_document_bytes:,} bytes", "")
    given = row.get(format_.id_field) if format_.id_field is not None else None
    if given is None:
        return Text(own, text)
    identifier = given.decode(errors="backslashreplace") if isinstance(given, bytes) else str(given)
    anchor = anchors.anchor(identifier, own, unique=isinstance(format_, JsonLines) and format_.unique_ids)
    if anchor is None:
        raise UnreadableFileError(
            f"{name}: {own} has the {format_.id_field} {identifier!r} of an earlier line; each document of a file "
            f"needs its own. Change one of them, or leave {format_.id_field!r} out of the lines: line numbers then "
            "take its place."
        )
    return Text(anchor, text)


def _excerpt(row: dict[str, Any]) -> str:
    def shown(value: object) -> object:
        return value[:EXCERPT_CHARACTERS] if isinstance(value, str | bytes) else value

    return json.dumps({name: shown(value) for name, value in row.items()}, default=str)[:EXCERPT_CHARACTERS]


# JSON lines


def _json_rows(file: IO[bytes], name: str, limits: Limits, guard: Guard, shown: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(_lines(file, name, limits, shown), start=1):
        own = f"line {number}"
        if line is None:
            yield own, Unreadable(own, TOO_LARGE, f"more than {limits.max_document_bytes:,} bytes", "")
        elif line.strip() and isinstance(guard, Guarded):
            (row,) = guard(_json_row_in_child, line, anchor=own, name=f"{shown}, {own}", data=line)
            yield own, row
        elif line.strip():
            yield own, _json_row(line)


def _json_row_in_child(line: bytes) -> Iterator[Row]:
    yield _json_row(line)


def _json_row(line: bytes) -> Row:
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


def _lines(file: IO[bytes], name: str, limits: Limits, shown: str) -> Iterator[bytes | None]:
    """Yield each line; None for one that is too long for the limits of bytes and memory, which is never held whole.

    Raise DamagedFileError if the file has no bytes, cannot be unpacked, or unpacks to more than `limits` allow.
    """
    packed = stream = Stream(file.read)
    with as_damage(f"{shown}: cannot be unpacked", "it is cut short or not what its name says. Fetch it again."):
        if name.endswith(".gz"):
            plain = gzip.GzipFile(fileobj=io.BufferedReader(packed, _BLOCK_BYTES))
            stream = Unpacked(plain, lambda: packed.num_bytes, shown, limits)
        elif name.endswith(".zst"):
            stream = Unpacked(unpack_zstd(packed, shown, limits), lambda: packed.num_bytes, shown, limits)
        yield from _split(stream, min(limits.max_document_bytes, limits.max_document_memory // MEMORY_PER_BYTE))
    if not packed.num_bytes:
        raise no_bytes(shown)


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
