"""Extraction of documents from one unit of files: members are read as their format, faults are counted."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from runtime.text.documents import Document
from runtime.text.drops import DropLedger
from runtime.text.extraction import formats, html, packages, records, web_archive
from runtime.text.extraction.archive import is_seekable, open_members, spooled
from runtime.text.extraction.damage import as_damage, store_failures_raised
from runtime.text.extraction.extracted import (
    NOT_UTF8,
    DamagedFileError,
    Excluded,
    Extracted,
    Text,
    Unreadable,
    decoded,
    no_bytes,
)
from runtime.text.extraction.formats import Format, Unit
from runtime.text.extraction.guard import Guard, unguarded
from runtime.text.extraction.limits import DEFAULTS, TOO_LARGE, Limits

Opener = Callable[[], IO[bytes]]

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

    `ledger` counts what is no document or cannot be read; documents before the damage of a file stay. Messages name the
    file by `origin`, if given. `guard` reads documents that may end their reader; see `runtime.text.extraction.guard`.
    Raise UnreadableFileError if two documents of a file have one id where the format forbids that.
    """
    format_ = formats[unit.format_index]
    try:
        with store_failures_raised():
            for name, open_member in open_members(unit, limits):
                found = _read(format_, unit, name, open_member, origin or name, limits, guard)
                yield from _documents(found, source, name, ledger)
    except DamagedFileError as error:
        identifier = f"{source}/{unit.name}" if unit.name else source
        ledger.drop(DAMAGED_FILE, document_id=identifier, detail=str(error), text="")


def _documents(pieces: Extracted, source: str, name: str, ledger: DropLedger) -> Iterator[Document]:
    try:
        for found in pieces:
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


def _read(
    format_: Format, unit: Unit, name: str, open_member: Opener, shown: str, limits: Limits, guard: Guard
) -> Extracted:
    """Yield what a member holds; it is `name` in ids and `shown` in messages."""
    limit = limits.max_document_bytes
    problem = f"{unit.file}: member {name!r} cannot be unpacked" if unit.members else f"{shown}: cannot be read"
    cure = "it is cut short or damaged. Fetch it again, or leave it out with `exclude`."
    with as_damage(problem, cure), open_member() as file:
        if isinstance(format_, formats.JsonLines):
            yield from records.read_records(file, name, format_, limits, guard, shown=shown)
        elif isinstance(format_, formats.WebArchive | formats.ParquetTable | formats.ChatTable):
            with contextlib.nullcontext(file) if is_seekable(unit) else spooled(file) as opened:
                if isinstance(format_, formats.WebArchive):
                    if not opened.read(1):
                        raise no_bytes(shown)
                    yield from web_archive.read_web_archive(opened, format_, limits, guard)
                else:
                    yield from records.read_records(opened, name, format_, limits, guard, shown=shown)
        elif len(data := file.read(limit + 1)) > limit:
            yield Unreadable("", TOO_LARGE, f"more than {limit:,} bytes", "")
        else:
            yield from guard(_read_whole, format_, data, limit, anchor="", name=shown, data=data)


def _read_whole(format_: Format, data: bytes, max_bytes: int) -> Extracted:
    match format_:
        case formats.ServiceModels():
            return packages.read_service_models(data, max_bytes)
        case formats.PythonDocstrings():
            return packages.read_docstrings(data)
        case formats.HtmlPages():
            return html.read_pages(data, format_)
    text = decoded(data)
    return iter([text if isinstance(text, Unreadable) else Text("", text)])
