"""Web archives to documents: the pages of a WARC file and the texts of a WET file.

Some crawlers store the body of an HTTP answer decoded and keep the headers that say otherwise. A body without chunks or
compression is therefore taken as it is. FastWARC's decoder raises for these bodies, and for chunks with extensions.
"""

import io
import re
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

import pyarrow as pa

from runtime.text.extraction import html
from runtime.text.extraction.extracted import EXCERPT_BYTES, Excluded, Extracted, Text, Unreadable, metadata
from runtime.text.extraction.formats import WebArchive
from runtime.text.extraction.guard import Guard, unguarded
from runtime.text.extraction.limits import DEFAULTS, TOO_LARGE, Limits
from runtime.text.extraction.warc import Damage, Record, parse_headers, read_records

OTHER_KIND = "not a page: another kind of record"
REVISIT = "not a page: revisit of an earlier record"
OTHER_STATUS = "not a page: HTTP status"
OTHER_TYPE = "not a page: content type"

_HTML = ("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml")
CUT_SHORT = "HTTP: body cut short"
UNDECODABLE = "HTTP: body cannot be decoded"
NO_ANSWER = "HTTP: no answer"

_STATUS = re.compile(rb"\s*HTTP/\d(?:\.\d)?[ \t]+(\d{3})\b", re.I)
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"[ \t]*(0*[0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*=[\s\"']*([^\s;,\"']+)", re.I)
_MIME_TYPE = re.compile(r"(?:^|,)[\s\"']*([\w.+-]+/[\w.+-]+)")
_GZIP_MAGIC = b"\x1f\x8b\x08"
_CHUNK_BYTES = 16 << 10
_IDENTITY = ("", "identity", "none", "binary", "8bit")


class Answer(NamedTuple):
    status: int
    content_type: str
    """Lower case, without parameters; "" if absent."""
    charset: str | None
    body: bytes
    is_cut: bool
    """The body ends before its chunks or its compressed stream do."""


class HttpError(ValueError):
    """An answer that cannot be read; `reason` is counted, the message says what was found."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_web_archive(
    file: IO[bytes], format_: WebArchive, limits: Limits = DEFAULTS, guard: Guard = unguarded
) -> Extracted:
    """Yield a document for each page (response, resource) and each text (conversion); anchors are record offsets."""
    for record in read_records(file, limits):
        match record:
            case Damage():
                yield Unreadable(record.place, record.reason, record.detail, record.excerpt)
            case Record():
                described = {"anchor": record.place, "name": f"record {record.place}, {_uri(record)}"}
                yield from guard(_documents, record, format_, limits, **described, data=record.payload)


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
            try:
                text = html.without_controls(record.payload.decode()).strip()
            except UnicodeDecodeError as error:
                problem = f"a text that is not UTF-8: {error.reason}"
                yield _unreadable(record, html.NO_CHARSET, problem, record.payload)
            else:
                yield Text(record.place, text, metadata(**_origin(record)))
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
        text, found = html.read_page(answer.body, format_, server_charset=answer.charset, is_cut=was_truncated)
    except html.PageError as error:
        return _unreadable(record, error.reason, str(error), answer.body)
    found |= _origin(record) | ({"truncated": "yes"} if was_truncated else {})
    return Text(record.place, text, metadata(**found))


def _uri(record: Record) -> str:
    return record.headers.get("warc-target-uri", "").strip("<>")


def _origin(record: Record) -> dict[str, str]:
    return {"url": _uri(record), "date": record.headers.get("warc-date", "")}


def _unreadable(record: Record, reason: str, detail: str, data: bytes) -> Unreadable:
    excerpt = data[:EXCERPT_BYTES].decode(errors="backslashreplace")
    return Unreadable(record.place, reason, f"{detail}, {_uri(record)}", excerpt)


def parse_answer(stored: bytes, *, max_body_bytes: int) -> Answer:
    """Parse the payload of a WARC record.

    Raise HttpError for no status line, an unknown or broken compression, or a body larger than the limit.
    """
    status = _STATUS.match(stored)
    if status is None:
        raise HttpError(NO_ANSWER, f"begins with {stored[:40]!r}")
    end = _END_OF_HEADERS.search(stored)
    headers = parse_headers(stored if end is None else stored[: end.start()], joins=True)
    body, is_cut = b"" if end is None else stored[end.end() :], False
    encodings = f"{headers.get('content-encoding', '')},{headers.get('transfer-encoding', '')}".lower().split(",")
    for encoding in map(str.strip, reversed(encodings)):
        if encoding not in _IDENTITY:
            body, is_cut_inside = _decoded(body, encoding, max_body_bytes)
            is_cut |= is_cut_inside
    kind, charset = parse_content_type(headers.get("content-type", ""))
    return Answer(int(status[1]), kind, charset, body, is_cut)


def parse_content_type(value: str) -> tuple[str, str | None]:
    """Return the type in lower case, "" if there is none, and the charset.

    Of several types the last counts (WHATWG Fetch, "extract a MIME type"), and of several charsets the last.
    """
    kinds, charsets = _MIME_TYPE.findall(value), _CHARSET.findall(value)
    return kinds[-1].lower() if kinds else "", charsets[-1] if charsets else None


def _without_chunks(body: bytes) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    position = 0
    while (head := _CHUNK.match(body, position)) is not None:
        size = int(head[1], 16)
        if size == 0:
            return b"".join(pieces), False
        end = head.end() + size
        pieces.append(body[head.end() : end])
        if len(body) < end:
            return b"".join(pieces), True
        position = end + (2 if body[end : end + 2] == b"\r\n" else 1)
    # Without a chunk at the very beginning the crawler stored the body decoded.
    return (b"".join(pieces), True) if pieces else (body, False)


def _decoded(body: bytes, encoding: str, limit: int) -> tuple[bytes, bool]:
    if encoding == "chunked":
        return _without_chunks(body)
    if not body or body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return body, False  # the crawler stored the body decoded
    match encoding:
        case "gzip" | "x-gzip":
            return _joined(_inflated(body, 31), limit)
        case "deflate":
            # The standard says zlib; some servers send the bare stream (RFC 9110, section 8.4.1.2).
            is_zlib = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
            return _joined(_inflated(body, 15 if is_zlib else -15), limit)
        case "br" | "brotli":
            return _joined(_decompressed_by_arrow(body, "brotli"), limit)
        case "zstd":
            return _joined(_decompressed_by_arrow(body, "zstd"), limit)
    raise HttpError(UNDECODABLE, f"encoding {encoding!r} is not known")


def _joined(pieces: Iterator[bytes], limit: int) -> tuple[bytes, bool]:
    """Return the unpacked bytes, and whether the packed ones are cut short."""
    found: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > limit:
                raise HttpError(TOO_LARGE, f"more than {limit:,} bytes when decompressed")
            found.append(piece)
    except EOFError:
        return b"".join(found), True
    except (zlib.error, OSError) as error:
        if found and "truncated" in str(error).lower():  # Arrow's word
            return b"".join(found), True
        raise HttpError(UNDECODABLE, str(error)) from error
    return b"".join(found), False


def _inflated(body: bytes, wbits: int) -> Iterator[bytes]:
    """Unpack one stream or several; what follows one and begins no other is padding."""
    start = 0
    while start == 0 or body.startswith(_GZIP_MAGIC, start):
        inflate = zlib.decompressobj(wbits=wbits)
        while not inflate.eof:
            packed = body[start : start + _CHUNK_BYTES]
            if not packed:
                raise EOFError
            yield inflate.decompress(packed)  # a thousand times as many bytes at most
            start += len(packed) - len(inflate.unused_data)


def _decompressed_by_arrow(body: bytes, codec: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(io.BytesIO(body), codec) as stream:
        while piece := stream.read(1 << 20):
            yield piece
