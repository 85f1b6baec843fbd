"""Files of records: JSON lines (plain, gzip, zstd) and Parquet tables; read as streams, whatever their size."""

import gzip
import hashlib
import json
import zlib
from array import array
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Extracted, Text, Unreadable, decoded

NOT_JSON = "not a JSON object"
NO_TEXT = "no text"
EXCERPT_CHARACTERS = 200


class UnreadableFileError(ValueError):
    """A file that does not fit the format that a recipe gives it; the recipe is wrong, not the file."""


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
        except ValueError as error:
            yield Unreadable(anchor, NOT_JSON, str(error), text[:EXCERPT_CHARACTERS])
            continue
        if not isinstance(row, dict):
            yield Unreadable(anchor, NOT_JSON, f"a {type(row).__name__}", text[:EXCERPT_CHARACTERS])
            continue
        yield _from_row(row, anchor, text_field, id_field)


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
    """Number of the line and id, of the lines that have one."""
    for number, line in enumerate(_lines(file, name), start=1):
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except ValueError:  # counted as unreadable when it is its turn
            continue
        if isinstance(row, dict) and row.get(id_field) is not None:
            yield number, str(row[id_field])


def _key(identifier: str) -> int:
    return int.from_bytes(hashlib.blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def read_parquet(file: IO[bytes], name: str, *, text_field: str, id_field: str | None) -> Extracted:
    for anchor, row in _parquet_rows(file, name, text_field, id_field):
        yield _from_row(row, anchor, text_field, id_field)


def read_chats(file: IO[bytes], name: str, *, messages_field: str, id_field: str | None) -> Extracted:
    """Turns as `User: ...` and `Assistant: ...`, a blank line between them."""
    for anchor, row in _parquet_rows(file, name, messages_field, id_field):
        turns = [f"{turn['role'].capitalize()}: {turn['content']}" for turn in row[messages_field] or []]
        text = {**row, messages_field: "\n\n".join(turns)}
        yield _from_row(text, anchor, messages_field, id_field)


def _parquet_rows(file: IO[bytes], name: str, field: str, id_field: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        table = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise DamagedFileError(f"{name}: not a Parquet file ({error})") from error
    names = table.schema_arrow.names
    if field not in names:
        raise UnreadableFileError(
            f"{name}: columns are {names}; none is {field!r}. Name the column that holds the text."
        )
    columns = [field] if id_field is None or id_field not in names else [field, id_field]
    number = 0
    for batch in table.iter_batches(batch_size=4_096, columns=columns):
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def _from_row(row: dict[str, Any], anchor: str, text_field: str, id_field: str | None) -> Text | Unreadable:
    text = row.get(text_field)
    if not isinstance(text, str):
        found = "absent" if text_field not in row else f"a {type(text).__name__}"
        return Unreadable(
            anchor, NO_TEXT, f"field {text_field!r} is {found}", json.dumps(row, default=str)[:EXCERPT_CHARACTERS]
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return Unreadable(anchor, NOT_UTF8, f"lone surrogate at character {error.start}", text[:EXCERPT_CHARACTERS])
    given = row.get(id_field) if id_field is not None else None
    return Text(anchor if given is None else str(given), text)


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    try:
        if name.endswith(".gz"):
            with gzip.open(file) as lines:
                yield from lines
        elif name.endswith(".zst"):
            # Arrow's own codec: the standard library has none before Python 3.14.
            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
                yield from _split(stream)
        else:
            yield from file
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        # Arrow and gzip raise a bare OSError for a bad stream; one with a number comes from the disk or the network.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedFileError(
            f"{name}: cannot be unpacked ({error}); it is cut short or not what its name says"
        ) from error


def _split(stream: Any) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest
