"""Web archives: records are those that FastWARC reads, and damage costs one record."""

import base64
import gzip
import hashlib
import io
import json
import zlib

import pyarrow as pa
import pytest
from fastwarc.warc import ArchiveIterator

from runtime.text.extraction.extracted import Excluded, Text, Unreadable
from runtime.text.extraction.formats import WebArchive
from runtime.text.extraction.limits import DEFAULTS, Limits
from runtime.text.extraction.warc import Record, read_records
from runtime.text.extraction.web_archive import read_web_archive

HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html%s\r\n\r\n"
PAGE = "<html><body><p>Toy number %d, für immer.</p></body></html>"


def record(number, body=None, *, kind="response", http=HTML % b"; charset=utf-8", headers="", length=None, end=b"\r\n"):
    body = http + ((PAGE % number).encode() if body is None else body)
    head = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:{number:08d}-0000-4000-8000-000000000000>",
        f"WARC-Target-URI: http://toys.example/{number}",
        "WARC-Date: 2024-01-01T00:00:00Z",
        "Content-Type: application/http; msgtype=response",
        *([headers] if headers else []),
        f"Content-Length: {len(body) if length is None else length}",
    ]
    return end.join(line.encode() for line in head) + end * 2 + body + b"\r\n\r\n"


def member(*args, **kwargs):
    return gzip.compress(record(*args, **kwargs), mtime=0)


def read(data, max_document_bytes=DEFAULTS.max_document_bytes, **changes):
    limits = Limits(max_document_bytes=max_document_bytes)
    return list(read_web_archive(io.BytesIO(data), WebArchive(main_content=False, **changes), limits))


def texts(data, **changes):
    return [found.text for found in read(data, **changes) if isinstance(found, Text)]


def toy(number):
    return f"Toy number {number}, für immer."


MEMBERS = [member(number) for number in range(4)]


@pytest.mark.parametrize("is_compressed", [True, False])
def test_records_are_those_that_fastwarc_reads(is_compressed):
    kinds = ["warcinfo", "response", "request", "revisit", "metadata", "resource", "conversion"]
    pieces = [record(number, kind=kind) for number, kind in enumerate(kinds)]
    data = b"".join(gzip.compress(piece, mtime=0) if is_compressed else piece for piece in pieces)
    expected = [
        (str(found.stream_pos), str(found.record_type), found.reader.read())
        for found in ArchiveIterator(io.BytesIO(data), parse_http=False)
    ]
    found = read_records(io.BytesIO(data), DEFAULTS)
    assert [(one.place, one.kind, one.payload) for one in found if isinstance(one, Record)] == expected


def test_a_page_is_a_document_and_other_records_are_excluded_by_their_kind():
    data = [
        member(0),
        member(1, kind="request", http=b"GET / HTTP/1.1\r\n\r\n"),
        member(2, kind="revisit"),
        member(3, http=b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n"),
        member(4, http=b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"),
        gzip.compress(
            record(5, b"toys.example. 60 IN A 192.0.2.1", http=b"").replace(b"application/http", b"text/dns")
        ),
        gzip.compress(record(6, http=b"", kind="resource").replace(b"application/http", b"text/html")),
        member(7, b"A text of its own.\n", http=b"", kind="conversion"),
    ]
    found = read(b"".join(data))
    assert [type(one) for one in found] == [Text, Excluded, Excluded, Excluded, Excluded, Excluded, Text, Text]
    assert [one.text for one in found if isinstance(one, Text)] == [toy(0), toy(6), "A text of its own."]
    assert [one.reason for one in found if isinstance(one, Excluded)] == [
        "not a page: another kind of record",
        "not a page: revisit of an earlier record",
        "not a page: HTTP status",
        "not a page: content type",
        "not a page: another kind of record",
    ]
    assert found[6].anchor == str(sum(map(len, data[:6])))
    assert json.loads(found[0].metadata) == {
        "charset": "utf-8", "charset_from": "bytes", "date": "2024-01-01T00:00:00Z", "url": "http://toys.example/0",
    }  # fmt: skip


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "reason", "lost"),
    [
        (b"".join([MEMBERS[0], flipped(MEMBERS[1], 60), *MEMBERS[2:]]), "WARC: damaged record", 1),
        (b"".join([MEMBERS[0], flipped(MEMBERS[1], 0), *MEMBERS[2:]]), "WARC: damaged record", 1),
        (b"".join([MEMBERS[0], MEMBERS[1][:-30], *MEMBERS[2:]]), "WARC: damaged record", 1),
        (b"".join(MEMBERS)[:-20], "WARC: record cut short", 3),
        (b"".join([MEMBERS[0], member(1, length=5_000), *MEMBERS[2:]]), "WARC: record cut short", 1),
        (b"".join([MEMBERS[0], member(1, length=40), *MEMBERS[2:]]), "WARC: damaged record", 1),
        (b"".join([MEMBERS[0], member(1, length="many"), *MEMBERS[2:]]), "WARC: damaged record", 1),
        (b"".join([record(0), record(1, length=150), record(2), record(3)]), "WARC: damaged record", 1),
        (b"".join([record(0), record(1, length=40), record(2), record(3)]), "WARC: damaged record", 1),
        (b"".join([record(0), b"no record at all\r\n\r\n", record(2), record(3)]), "WARC: damaged record", 1),
        (b"".join(map(record, range(4)))[:-20], "WARC: record cut short", 3),
        (b"".join([MEMBERS[0], member(1, b"x" * 9_000), *MEMBERS[2:]]), "too large", 1),
        (b"".join([record(0), record(1, b"x" * 9_000), record(2), record(3)]), "too large", 1),
    ],
)
def test_a_damaged_record_is_counted_and_costs_no_other(data, reason, lost):
    found = read(data, max_document_bytes=8_000)
    assert [one.text for one in found if isinstance(one, Text)] == [
        toy(number) for number in range(4) if number != lost
    ]
    assert [one.reason for one in found if isinstance(one, Unreadable)] == [reason]


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(b"".join(map(record, range(4))), mtime=0),
        b"".join(record(number, end=b"\n") for number in range(4)),
        b"".join(member(number, headers="X-Cookie: " + "a" * 50_000) for number in range(4)),
        b"".join(member(number, headers="Folded: one\r\n two\r\nno colon \xe9") for number in range(4)),
        b"".join(MEMBERS) + b"\0" * 2,
    ],
    ids=["one gzip member", "bare newlines", "long headers", "odd headers", "padded"],
)
def test_odd_files_give_all_pages_under_unique_anchors(data):
    found = [one for one in read(data) if isinstance(one, Text)]
    assert [one.text for one in found] == [toy(number) for number in range(4)]
    assert len({one.anchor for one in found}) == 4


@pytest.mark.parametrize("packs", [lambda data: data, lambda data: gzip.compress(data, mtime=0)])
@pytest.mark.parametrize("line_ends", [b"", b"\n", b"\r\n", b"\r\n" * 3, b"\n" * 9_000])
def test_any_number_of_line_ends_may_follow_a_record(line_ends, packs):
    records = [record(number)[:-4] for number in range(4)]
    between = line_ends or b"\n"
    found = read(packs(between + between.join(records) + line_ends))
    assert [type(one) for one in found] == [Text] * 4
    assert [one.text for one in found] == [toy(number) for number in range(4)]


def test_a_file_compressed_as_a_whole_is_read_up_to_its_cut():
    data = gzip.compress(b"".join(record(number, b"<p>" + b"%d" % number * 900_000) for number in range(5)), mtime=0)
    assert len(texts(data, max_document_bytes=1_000_000)) == 5
    found = read(data[: len(data) // 2], max_document_bytes=1_000_000)
    assert [type(one) for one in found] == [Text, Text, Unreadable]


@pytest.mark.parametrize("form", ["sha1, base 32", "sha256, hexadecimal"])
def test_a_wrong_byte_of_a_file_compressed_as_a_whole_leaves_only_records_that_their_digests_prove(form):
    def proven(number):
        body = HTML % b"; charset=utf-8" + (PAGE % number).encode()
        sha1 = base64.b32encode(hashlib.sha1(body).digest()).decode()
        digest = f"sha1:{sha1}" if form.startswith("sha1") else f"sha256:{hashlib.sha256(body).hexdigest()}"
        return record(number, headers=f"WARC-Block-Digest: {digest}")

    pieces = [proven(0), record(1), proven(2), proven(3), record(4, b"<p>" + b"4" * 2_000)]
    stored = gzip.compress(b"".join(pieces), compresslevel=0, mtime=0)
    at = stored.index(b"Toy number 2")
    found = read(flipped(stored, at))
    assert [one.text for one in found if isinstance(one, Text)] == [toy(0), toy(3)]
    assert [one.reason for one in found if isinstance(one, Unreadable)] == ["WARC: damaged record"] * 3


def chunked(body):
    return b"".join(
        b"%x;ext=1\r\n%s\r\n" % (len(body[at : at + 9]), body[at : at + 9]) for at in range(0, len(body), 9)
    )


BODY = (PAGE % 1).encode()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"\r\nTransfer-Encoding: chunked", chunked(BODY) + b"0\r\n\r\n"),
        (b"\r\nTransfer-Encoding: chunked", b"%012x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
        (b"\r\nTransfer-Encoding: chunked", BODY),  # stored decoded, with the header left
        (b"\r\nContent-Encoding: gzip", gzip.compress(BODY, mtime=0)),
        (b"\r\nContent-Encoding: gzip", BODY),
        (b"\r\nContent-Encoding: x-gzip, identity", gzip.compress(BODY, mtime=0)),
        (b"\r\nContent-Encoding: deflate", zlib.compress(BODY)),
        (b"\r\nContent-Encoding: deflate", zlib.compress(BODY)[2:-4]),
        (b"\r\nContent-Encoding: br", pa.compress(BODY, codec="brotli", asbytes=True)),
        (b"\r\nContent-Encoding: zstd", pa.compress(BODY, codec="zstd", asbytes=True)),
        (
            b"\r\nContent-Encoding: gzip",
            gzip.compress(BODY[:20]) + gzip.compress(b"") + gzip.compress(BODY[20:]) + b"\0",
        ),
        (b"\r\nTransfer-Encoding: gzip, chunked", chunked(gzip.compress(BODY, mtime=0)) + b"0\r\n\r\n"),
        (b"\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked", chunked(gzip.compress(BODY)) + b"0\r\n\r\n"),
        (b"\r\nTransfer-Encoding: gzip\r\nContent-Encoding: gzip", gzip.compress(gzip.compress(BODY))),
        (
            b"\r\ntransfer-encoding:chunked\r\nCONTENT-ENCODING:GZIP",
            chunked(gzip.compress(BODY, mtime=0)) + b"0\r\n\r\n",
        ),
    ],
)
def test_chunks_and_compression_are_removed_where_a_body_has_them(headers, body):
    assert texts(member(1, body, http=HTML % headers)) == [toy(1)]


@pytest.mark.parametrize(
    "http",
    [
        b"http/1.1 200 OK\r\nContent-Type: text/html; charset=koi8-r\r\n\r\n",
        b"\r\nHTTP/2 200\r\nContent-Type: text/html;charset=koi8-r\r\n\r\n",
        b"HTTP/1.1\t200\nContent-Type: TEXT/HTML ; Charset = 'KOI8-R'\n\n",
        b"HTTP/1.0 200 OK\r\nContent-Type: text/html, text/html; charset=koi8-r\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Type: text/html;charset=koi8-r\r\n\r\n",
        b'HTTP/1.0 200 OK\r\nContent-Type: "text/html"; charset="utf-8"; charset="koi8-r"\r\n\r\n',
    ],
)
def test_odd_headers_are_read_as_lenient_clients_read_them(http):
    assert texts(member(1, "<p>Игрушка</p>".encode("koi8-r"), http=http)) == ["Игрушка"]


def test_the_type_of_a_resource_has_its_charset():
    typed = "Content-Type: text/html; charset=koi8-r"
    data = record(1, "<p>Игрушка</p>".encode("koi8-r"), kind="resource", http=b"", headers=typed)
    data = data.replace(b"Content-Type: application/http; msgtype=response\r\n", b"")
    (page,) = read(data)
    assert page.text == "Игрушка"
    assert json.loads(page.metadata)["charset_from"] == "server"


@pytest.mark.parametrize(
    ("http", "body", "reason"),
    [
        (HTML % b"\r\nContent-Encoding: gzip", gzip.compress(BODY, mtime=0)[:-12], "HTTP: body cut short"),
        (HTML % b"\r\nTransfer-Encoding: chunked", chunked(BODY)[:-9], "HTTP: body cut short"),
        (HTML % b"\r\nContent-Encoding: gzip", b"\x1f\x8b\x08broken", "HTTP: body cannot be decoded"),
        (HTML % b"\r\nContent-Encoding: br", b"\xff" * 60, "HTTP: body cannot be decoded"),
        (HTML % b"\r\nContent-Encoding: rot13", b"uryyb", "HTTP: body cannot be decoded"),
        (HTML % b"\r\nContent-Encoding: gzip", gzip.compress(b"a" * 99_999), "too large"),
        (HTML % b"", b"<p>\0\1\2" * 20, "no charset fits"),
        (b"garbage\r\n\r\n", None, "HTTP: no answer"),
    ],
)
def test_an_unreadable_answer_is_counted(http, body, reason):
    (found,) = read(member(1, body, http=http), max_document_bytes=50_000)
    assert isinstance(found, Unreadable)
    assert found.reason == reason
    assert "http://toys.example/1" in found.detail


def test_a_page_that_is_nested_too_deep_is_counted_and_costs_no_other():
    body = b"<html><body>" + b"<div>" * 100_000 + b"a toy"
    found = read(member(0) + member(1, body) + member(2))
    assert [each.text for each in found if isinstance(each, Text)] == [toy(0), toy(2)]
    (deep,) = (each for each in found if isinstance(each, Unreadable))
    assert deep.reason == "nested too deep"


def test_a_page_that_the_crawler_cut_is_kept_up_to_the_cut():
    body = gzip.compress(BODY + "ü".encode())
    (found,) = read(member(1, body[:-9], http=HTML % b"\r\nContent-Encoding: gzip", headers="WARC-Truncated: length"))
    assert found.text.startswith(toy(1)[:20])
    assert json.loads(found.metadata)["truncated"] == "yes"


RUSSIAN = "<p>Съешь же ещё этих мягких французских булок, да выпей чаю. Игрушка стоит на окне и смотрит на море.</p>"


@pytest.mark.parametrize(
    ("body", "http", "charset", "source"),
    [
        (RUSSIAN.encode(), HTML % b"; charset=iso-8859-1", "utf-8", "bytes"),
        (RUSSIAN.encode("cp1251"), HTML % b'; charset="windows-1251"', "cp1251", "server"),
        (b'<meta charset="koi8-r">' + RUSSIAN.encode("koi8-r"), HTML % b"", "koi8-r", "page"),
        (b'<meta charset="cp1251">' + RUSSIAN.encode("cp1251"), HTML % b"; charset=none-such", "cp1251", "page"),
        (b"<!-- <meta charset=koi8-r> -->" + RUSSIAN.encode("cp1251") * 9, HTML % b"", "cp1251", "guess"),
        (b"<!--<meta charset=koi8-r>--><meta charset=x-sjis><p>\x82\xd9</p>", HTML % b"", "cp932", "page"),
        (b"<?xml version='1.0' encoding='koi8-r'?>" + RUSSIAN.encode("koi8-r"), HTML % b"", "koi8-r", "page"),
        (RUSSIAN.encode("utf-16"), HTML % b"", "utf-16-le", "bytes"),
        (RUSSIAN.encode() * 99 + b"\xef.", HTML % b"; charset=utf-8", "utf-8", "server"),
    ],
)
def test_the_charset_is_the_first_that_fits_of_bytes_server_page_and_guess(body, http, charset, source):
    (found,) = read(member(1, body, http=http))
    assert found.text.startswith("Съешь же ещё этих мягких" if charset != "cp932" else "ほ")
    known = json.loads(found.metadata)
    assert (known["charset"], known["charset_from"]) == (charset, source)
    assert known.get("replaced") == ("1" if body.endswith(b"\xef.") else None)
