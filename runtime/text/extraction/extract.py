"""One unit of downloaded files to documents: reads each member as its format says, counts what it cannot read."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from runtime.text.documents import Document
from runtime.text.drops import DropLedger
from runtime.text.extraction import html, prose, python_source, records, service_models, web_archive
from runtime.text.extraction.archive import Unit, is_seekable, open_members, read_member, spooled
from runtime.text.extraction.damage import damage_told, store_failures_raised
from runtime.text.extraction.extracted import NOT_UTF8, DamagedFileError, Extracted, LeftOut, Text, Unreadable
from runtime.text.extraction.formats import (
    ChatTable,
    Format,
    HtmlPages,
    JsonLines,
    PackageMetadata,
    ParquetTable,
    PydocTopics,
    PythonDocstrings,
    PythonSource,
    RestructuredText,
    ServiceModels,
    WebArchive,
    is_read_in_any_order,
)
from runtime.text.extraction.guard import Guard, unguarded

EMPTY = "empty"
DAMAGED_FILE = "damaged file"


def extract(
    unit: Unit,
    formats: Sequence[Format],
    source: str,
    ledger: DropLedger,
    *,
    origin: str = "",
    guard: Guard = unguarded,
) -> Iterator[Document]:
    """Documents of a unit, in the order of its members; ids are `source/member#anchor`.

    Args:
        unit: What to read.
        formats: Those of the source.
        source: Begins every id.
        ledger: Takes what is no document and what cannot be read, a damaged file among it: what came out of it before
            the damage stays, and the next is read.
        origin: What a message calls the file, if not by its name in the ids.
        guard: How each page, record or member is read that is read as a whole; lines of JSON and rows of tables are
            read as they stand.

    Raises:
        UnreadableFileError: a file does not fit the format, or gives two documents one id where none may be.
    """
    format_ = formats[unit.format_index]
    try:
        with store_failures_raised():
            for name, open_member in open_members(unit):
                read = functools.partial(_read, format_, open_member, unit, name, origin or name, guard)
                yield from _documents(read, source, name, ledger)
    except DamagedFileError as error:
        # No member behind it can be had either.
        identifier = f"{source}/{unit.name}" if unit.name else source
        ledger.drop(DAMAGED_FILE, document_id=identifier, detail=str(error), text="")


def _documents(read: Callable[[], Extracted], source: str, name: str, ledger: DropLedger) -> Iterator[Document]:
    try:
        for found in read():
            identifier = f"{source}/{name}#{found.anchor}" if found.anchor else f"{source}/{name}"
            match found:
                case Unreadable():
                    ledger.drop(found.reason, document_id=identifier, detail=found.detail, text=found.excerpt)
                case LeftOut():
                    ledger.leave_out(found.reason, document_id=identifier, detail=found.detail)
                case Text() if (fault := _no_utf8(identifier) or _no_utf8(found.text)) is not None:
                    shown = identifier.encode(errors="backslashreplace").decode()
                    ledger.drop(NOT_UTF8, document_id=shown, detail=fault, text=found.text)
                case Text() if not found.text.strip():
                    ledger.leave_out(EMPTY, document_id=identifier, detail="nothing but white space")
                case Text():
                    yield Document(identifier, found.text, source, found.metadata)
    except DamagedFileError as error:
        ledger.drop(DAMAGED_FILE, document_id=f"{source}/{name}", detail=str(error), text="")


def _no_utf8(text: str) -> str | None:
    """What keeps a string, which JSON or Python may have built of escapes, from being UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate at character {error.start}"
    return None


def _read(
    format_: Format, open_member: Callable[[], IO[bytes]], unit: Unit, name: str, shown: str, guard: Guard
) -> Iterator[Text | Unreadable | LeftOut]:
    with damage_told(f"{shown}: cannot be read", "it is cut short or damaged: fetch it anew."), open_member() as file:
        if is_read_in_any_order(format_) and not is_seekable(unit):
            with spooled(file, shown) as copy:
                yield from _read_as(format_, copy, unit, name, shown, guard)
        else:
            yield from _read_as(format_, file, unit, name, shown, guard)


def _read_as(format_: Format, file: IO[bytes], unit: Unit, name: str, shown: str, guard: Guard) -> Extracted:
    match format_:
        case WebArchive():
            return web_archive.read_web_archive(file, format_, guard)
        case JsonLines():
            return records.read_json_lines(
                file,
                shown,
                text_field=format_.text_field,
                id_field=format_.id_field,
                unique_ids=format_.unique_ids,
            )
        case ParquetTable():
            return records.read_parquet(file, shown, text_field=format_.text_field, id_field=format_.id_field)
        case ChatTable():
            return records.read_chats(file, shown, messages_field=format_.messages_field, id_field=format_.id_field)
    data = read_member(file, unit.file, name)
    return guard(_read_member, format_, data, anchor="", name=shown, data=data)


def _read_member(format_: Format, data: bytes) -> Extracted:
    match format_:
        case ServiceModels():
            return service_models.read_service_models(data)
        case HtmlPages():
            return html.read_pages(
                data, main_content=format_.main_content, max_replaced_share=format_.max_replaced_share
            )
        case PythonSource():
            return python_source.read_source(data)
        case PythonDocstrings():
            return python_source.read_docstrings(data)
        case PydocTopics():
            return python_source.read_topics(data)
        case RestructuredText():
            return prose.read_restructured_text(data)
        case PackageMetadata():
            return prose.read_package_metadata(data)
    raise AssertionError(f"{type(format_).__name__} is read as a stream")
