"""Extraction of documents from one unit of files: members are read as their format, faults are counted."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

from runtime.text.documents import Document
from runtime.text.drops import DropLedger
from runtime.text.extraction import docstrings, html, records, service_models, web_archive
from runtime.text.extraction.archive import Unit, is_seekable, open_members, read_member, spooled
from runtime.text.extraction.damage import as_damage, store_failures_raised
from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Excluded, Extracted, Text, Unreadable, decoded
from runtime.text.extraction.formats import (
    ChatTable,
    Format,
    HtmlPages,
    JsonLines,
    ParquetTable,
    PlainText,
    PythonDocstrings,
    ServiceModels,
    WebArchive,
)
from runtime.text.extraction.guard import Guard, unguarded
from runtime.text.extraction.limits import DEFAULTS, TOO_LARGE, Limits

EMPTY = "empty"
DAMAGED_FILE = "damaged file"


def extract(
    unit: Unit,
    formats: Sequence[Format],
    source: str,
    ledger: DropLedger,
    *,
    origin: str = "",
    limits: Limits = DEFAULTS,
    guard: Guard = unguarded,
) -> Iterator[Document]:
    """Yield the documents of a unit in the order of its members; ids are `source/member#anchor`.

    Args:
        unit: The members.
        formats: The formats of the source.
        source: The beginning of every id.
        ledger: Counts what is no document or cannot be read. The documents before the damage of a file stay.
        origin: The file's name in messages, if not its name in the ids.
        limits: The cost of one document and one file.
        guard: Reads each page, record or member that is read as a whole; lines and rows are read without it.

    Raises:
        UnreadableFileError: two documents of a file have one id where the format forbids that.
    """
    format_ = formats[unit.format_index]
    try:
        with store_failures_raised():
            for name, open_member in open_members(unit, limits):
                reading = _Reading(format_, unit, name, origin or name, limits, guard)
                read = functools.partial(_read, reading, open_member)
                yield from _documents(read, source, name, ledger)
    except DamagedFileError as error:
        identifier = f"{source}/{unit.name}" if unit.name else source
        ledger.drop(DAMAGED_FILE, document_id=identifier, detail=str(error), text="")


def _documents(read: Callable[[], Extracted], source: str, name: str, ledger: DropLedger) -> Iterator[Document]:
    try:
        for found in read():
            identifier = f"{source}/{name}#{found.anchor}" if found.anchor else f"{source}/{name}"
            match found:
                case Unreadable():
                    ledger.drop(found.reason, document_id=identifier, detail=found.detail, text=found.excerpt)
                case Excluded():
                    ledger.exclude(found.reason, document_id=identifier, detail=found.detail)
                case Text() if (fault := _surrogate(identifier) or _surrogate(found.text)) is not None:
                    shown = identifier.encode(errors="backslashreplace").decode()
                    ledger.drop(NOT_UTF8, document_id=shown, detail=fault, text=found.text)
                case Text() if not found.text.strip():
                    ledger.exclude(EMPTY, document_id=identifier, detail="nothing but white space")
                case Text():
                    yield Document(identifier, found.text, source, found.metadata)
    except DamagedFileError as error:
        ledger.drop(DAMAGED_FILE, document_id=f"{source}/{name}", detail=str(error), text="")


def _surrogate(text: str) -> str | None:
    """Return where a string has a lone surrogate, which escapes of JSON or Python may give."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate at character {error.start}"
    return None


class _Reading(NamedTuple):
    """A member of a unit, and how to read it."""

    format_: Format
    unit: Unit
    name: str
    """The member's name in ids."""
    shown: str
    """The member's name in messages."""
    limits: Limits
    guard: Guard


def _read(reading: _Reading, open_member: Callable[[], IO[bytes]]) -> Extracted:
    problem, cure = f"{reading.shown}: cannot be read", "it is cut short or damaged. Fetch it again."
    with as_damage(problem, cure), open_member() as file:
        if isinstance(reading.format_, WebArchive | ParquetTable | ChatTable) and not is_seekable(reading.unit):
            with spooled(file) as copy:
                yield from _read_as(reading, copy)
        else:
            yield from _read_as(reading, file)


def _read_as(reading: _Reading, file: IO[bytes]) -> Extracted:
    match reading.format_:
        case WebArchive():
            return web_archive.read_web_archive(file, reading.format_, reading.limits, reading.guard)
        case JsonLines():
            return records.read_json_lines(file, reading.name, reading.format_, reading.limits, shown=reading.shown)
        case ParquetTable():
            return records.read_parquet(file, reading.format_, reading.limits, shown=reading.shown)
        case ChatTable():
            return records.read_chats(file, reading.name, reading.format_, reading.limits, shown=reading.shown)
    limit = reading.limits.max_document_bytes
    data = read_member(file, reading.unit.file, reading.name, limit + 1)
    if len(data) > limit:
        return iter([Unreadable("", TOO_LARGE, f"more than {limit:,} bytes", "")])
    return reading.guard(_read_member, reading.format_, data, limit, anchor="", name=reading.shown, data=data)


def _read_member(format_: Format, data: bytes, max_bytes: int) -> Extracted:
    match format_:
        case ServiceModels():
            return service_models.read_service_models(data, max_bytes)
        case HtmlPages():
            return html.read_pages(
                data, main_content=format_.main_content, max_replaced_share=format_.max_replaced_share
            )
        case PlainText():
            text = decoded(data)
            return iter([text if isinstance(text, Unreadable) else Text("", text)])
        case PythonDocstrings():
            return docstrings.read_docstrings(data)
    raise AssertionError(f"{type(format_).__name__} is read as a stream")
