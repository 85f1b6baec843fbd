"""Web archives to documents: the pages of a WARC file and the texts of a WET file."""

from collections.abc import Iterator
from typing import IO

from runtime.text.extraction import html
from runtime.text.extraction.extracted import EXCERPT_BYTES, Excluded, Extracted, Text, Unreadable, metadata
from runtime.text.extraction.formats import WebArchive
from runtime.text.extraction.guard import Guard, unguarded
from runtime.text.extraction.html import NO_CHARSET
from runtime.text.extraction.http_answer import CUT_SHORT, Answer, HttpError, parse_answer, parse_content_type
from runtime.text.extraction.limits import DEFAULTS, Limits
from runtime.text.extraction.warc import Damage, Record, read_records

OTHER_KIND = "not a page: another kind of record"
REVISIT = "not a page: revisit of an earlier record"
OTHER_STATUS = "not a page: HTTP status"
OTHER_TYPE = "not a page: content type"

_HTML = ("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml")


def read_web_archive(
    file: IO[bytes], format_: WebArchive, limits: Limits = DEFAULTS, guard: Guard = unguarded
) -> Extracted:
    """Yield a document for each page (response, resource) and each text (conversion); anchors are record offsets."""
    for record in read_records(file, limits):
        match record:
            case Damage():
                yield Unreadable(record.place, record.reason, record.detail, record.excerpt)
            case Record():
                name = f"record {record.place}, {_uri(record)}"
                yield from guard(
                    _documents, record, format_, limits, anchor=record.place, name=name, data=record.payload
                )


def _documents(record: Record, format_: WebArchive, limits: Limits) -> Iterator[Text | Unreadable | Excluded]:
    kind, charset = parse_content_type(record.headers.get("content-type", ""))
    match record.kind:
        case "response" if kind == "application/http" or record.payload.startswith(b"HTTP/"):
            try:
                answer = parse_answer(record.payload, max_body_bytes=limits.max_document_bytes)
            except HttpError as error:
                yield _unreadable(record, error.reason, str(error), record.payload)
                return
            if answer.status not in format_.statuses:
                yield Excluded(record.place, OTHER_STATUS, f"{answer.status}, {_uri(record)}")
            else:
                yield _page(record, answer, format_)
        case "resource":
            yield _page(record, Answer(200, kind, charset, record.payload, is_cut=False), format_)
        case "conversion":
            yield _text(record)
        case "revisit":
            yield Excluded(record.place, REVISIT, _uri(record))
        case _:
            yield Excluded(record.place, OTHER_KIND, f"{record.kind or 'none'}, {kind or 'no content type'}")


def _page(record: Record, answer: Answer, format_: WebArchive) -> Text | Unreadable | Excluded:
    if answer.content_type not in _HTML:
        return Excluded(record.place, OTHER_TYPE, f"{answer.content_type or 'none'}, {_uri(record)}")
    was_truncated = "warc-truncated" in record.headers
    if answer.is_cut and not was_truncated:
        return _unreadable(record, CUT_SHORT, f"{len(answer.body):,} bytes", answer.body)
    try:
        text, found = html.read_page(
            answer.body,
            server_charset=answer.charset,
            is_cut=was_truncated,
            main_content=format_.main_content,
            max_replaced_share=format_.max_replaced_share,
        )
    except html.PageError as error:
        return _unreadable(record, error.reason, str(error), answer.body)
    found |= {"url": _uri(record), "date": record.headers.get("warc-date", "")}
    return Text(record.place, text, metadata(**found, **({"truncated": "yes"} if was_truncated else {})))


def _text(record: Record) -> Text | Unreadable:
    try:
        text = record.payload.decode()
    except UnicodeDecodeError as error:
        return _unreadable(record, NO_CHARSET, f"a text that is not UTF-8: {error.reason}", record.payload)
    return Text(
        record.place,
        html.without_controls(text).strip(),
        metadata(url=_uri(record), date=record.headers.get("warc-date", "")),
    )


def _uri(record: Record) -> str:
    return record.headers.get("warc-target-uri", "").strip("<>")


def _unreadable(record: Record, reason: str, detail: str, data: bytes) -> Unreadable:
    excerpt = data[:EXCERPT_BYTES].decode(errors="backslashreplace")
    return Unreadable(record.place, reason, f"{detail}, {_uri(record)}", excerpt)
