"""HTTP answers as crawlers store them: status, content type, and the body without chunks and compression.

Some crawlers store a body decoded and keep the headers that say otherwise. A body without chunks or compression is
therefore taken as it is. FastWARC's decoder raises for these bodies, and for chunks with extensions.
"""

import io
import re
import zlib
from typing import NamedTuple

import pyarrow as pa

from runtime.text.extraction.limits import TOO_LARGE
from runtime.text.extraction.warc import parse_headers

CUT_SHORT = "HTTP: body cut short"
UNDECODABLE = "HTTP: body cannot be decoded"
NO_ANSWER = "HTTP: no answer"

_STATUS = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})\b")
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"[ \t]*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*=[\s\"']*([^\s;\"']+)", re.I)


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


def parse_answer(stored: bytes, *, max_body_bytes: int) -> Answer:
    """Parse the payload of a WARC record.

    Raises:
        HttpError: no status line, an unknown or broken compression, or a body larger than the limit.
    """
    status = _STATUS.match(stored)
    if status is None:
        raise HttpError(NO_ANSWER, f"begins with {stored[:40]!r}")
    end = _END_OF_HEADERS.search(stored)
    headers = parse_headers(stored if end is None else stored[: end.start()])
    body, is_cut = b"" if end is None else stored[end.end() :], False
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body, is_cut = _without_chunks(body)
    for encoding in reversed(headers.get("content-encoding", "").lower().split(",")):
        if encoding.strip() not in ("", "identity", "none"):
            body, is_cut_inside = _decompressed(body, encoding.strip(), max_body_bytes)
            is_cut |= is_cut_inside
    value = headers.get("content-type", "")
    charset = _CHARSET.search(value)
    kind = value.partition(";")[0].strip().lower()
    return Answer(int(status[1]), kind, charset[1] if charset else None, body, is_cut)


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


def _decompressed(body: bytes, encoding: str, limit: int) -> tuple[bytes, bool]:
    if not body or body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return body, False  # the crawler stored the body decoded
    match encoding:
        case "gzip" | "x-gzip":
            return _inflated(body, 31, limit)
        case "deflate":
            # The standard says zlib; some servers send the bare stream (RFC 9110, section 8.4.1.2).
            is_zlib = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
            return _inflated(body, 15 if is_zlib else -15, limit)
        case "br" | "brotli":
            return _decompressed_by_arrow(body, "brotli", limit)
        case "zstd":
            return _decompressed_by_arrow(body, "zstd", limit)
    raise HttpError(UNDECODABLE, f"Content-Encoding {encoding!r} is not known")


def _inflated(body: bytes, wbits: int, limit: int) -> tuple[bytes, bool]:
    inflate = zlib.decompressobj(wbits=wbits)
    try:
        data = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise HttpError(UNDECODABLE, str(error)) from error
    if len(data) > limit:
        raise HttpError(TOO_LARGE, f"more than {limit:,} bytes when decompressed")
    return data, not inflate.eof


def _decompressed_by_arrow(body: bytes, codec: str, limit: int) -> tuple[bytes, bool]:
    data = b""
    try:
        with pa.CompressedInputStream(io.BytesIO(body), codec) as stream:
            while piece := stream.read(1 << 20):
                data += piece
                if len(data) > limit:
                    raise HttpError(TOO_LARGE, f"more than {limit:,} bytes when decompressed")
    except OSError as error:
        if data and "truncated" in str(error).lower():
            return data, True
        raise HttpError(UNDECODABLE, str(error)) from error
    return data, False
