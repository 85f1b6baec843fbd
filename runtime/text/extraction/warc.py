"""WARC files (ISO 28500): each record by itself, so that a damaged one costs no other.

In a compressed WARC every record is a gzip member of its own; a member that is damaged is one record lost, and reading
goes on at the next that begins with a record. In a plain file it goes on at the next line that begins one. The length
that a record claims is held against the blank lines that must follow: one that claims too much would swallow the next.
Memory holds one record; a file that is compressed as a whole lies unpacked in a temporary file. Libraries for WARC
(warcio, FastWARC) end at the first damage instead.
"""

import gzip
import io
import re
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple, cast

CUT_SHORT = "WARC: record cut short"
DAMAGED = "WARC: damaged record"
TOO_LARGE = "WARC: record too large"

_GZIP_MAGIC = b"\x1f\x8b\x08"
_MAGIC = b"WARC/"
_CHUNK_BYTES = 64 << 10
_MAX_HEADER_BYTES = 1 << 20
_IN_MEMORY_BYTES = 32 << 20
MAX_UNPACKED_BYTES = 16 << 30
"""What a file that is compressed as a whole may take of the machine's temporary folder while it is read."""
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_CONTENT_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?$", re.I | re.M)


class Record(NamedTuple):
    """One record as it is stored: nothing of its payload is decoded."""

    place: str
    """Its offset in the file, which is what an index of a crawl calls it by."""
    headers: dict[str, str]
    """Names in lower case."""
    payload: bytes

    @property
    def kind(self) -> str:
        """The WARC-Type, in lower case."""
        return self.headers.get("warc-type", "").lower()


class Damage(NamedTuple):
    """A record that cannot be had, and why; what follows it is read all the same."""

    place: str
    reason: str
    detail: str
    excerpt: str = ""


Found = Iterator[Record | Damage]


def read_records(file: IO[bytes], *, max_record_bytes: int) -> Found:
    """Every record in order of the file, which may be gzipped record by record, gzipped as a whole, or plain."""
    if _at(file, 0, len(_GZIP_MAGIC)) == _GZIP_MAGIC:
        return _compressed(file, max_record_bytes)
    return _plain(file, max_record_bytes)


def headers_of(head: bytes) -> dict[str, str]:
    """Headers by name in lower case, without the first line; of a name that comes twice the last counts.

    A line without a colon is left out, and one that begins with white space goes on with the one before.
    """
    found: dict[str, str] = {}
    name = ""
    for line in head.decode("utf-8", errors="backslashreplace").split("\n")[1:]:
        if line[:1] in (" ", "\t") and name:
            found[name] += f" {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            found[name] = value.strip()
    return found


def _compressed(file: IO[bytes], max_record_bytes: int) -> Found:
    start: int | None = 0
    while start is not None and (beginning := _at(file, start, len(_GZIP_MAGIC))):
        if beginning != _GZIP_MAGIC:
            yield Damage(str(start), DAMAGED, "no gzip member begins here")
            start = _next_member(file, start + 1)
            continue
        member = _member(file, start, limit=max_record_bytes + _MAX_HEADER_BYTES)
        if member.error:
            yield Damage(str(start), CUT_SHORT if member.is_cut else DAMAGED, member.error, _excerpt(member.data))
            start = _next_member(file, start + 1)
        elif member.end is None and start == 0 and _claims(member.data) <= max_record_bytes:
            # Not one record a member: the file was compressed as a whole.
            yield from _compressed_as_a_whole(file, max_record_bytes)
            return
        elif member.end is None:
            yield Damage(str(start), TOO_LARGE, f"more than {max_record_bytes:,} bytes", _excerpt(member.data))
            start = _member(file, start, limit=None).end or _next_member(file, start + 1)
        else:
            for found in _plain(io.BytesIO(member.data), max_record_bytes):
                yield found._replace(place=str(start) if found.place == "0" else f"{start}+{found.place}")
            start = member.end


def _compressed_as_a_whole(file: IO[bytes], max_record_bytes: int) -> Found:
    """Set aside unpacked: a record is read back and forth, and every step back would unpack all again."""
    file.seek(0)
    end = None
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as plain:
        try:
            with gzip.GzipFile(fileobj=file) as packed:
                while data := packed.read1(_CHUNK_BYTES):
                    if plain.tell() + len(data) > MAX_UNPACKED_BYTES:
                        end = Damage("", TOO_LARGE, f"gzip: unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
                        break
                    plain.write(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            end = Damage("", CUT_SHORT, f"gzip: {error}; nothing behind this can be read")
        place = "0"
        for found in _plain(cast(IO[bytes], plain), max_record_bytes):
            if end is not None and isinstance(found, Damage) and found.reason == CUT_SHORT:
                continue  # the last one, and `end` says why
            place = found.place
            yield found
        if end is not None:
            yield end._replace(place=f"after {place}")


class _Member(NamedTuple):
    data: bytes
    end: int | None
    """Where the next begins; None if this one is damaged or larger than asked for."""
    error: str = ""
    is_cut: bool = False


def _member(file: IO[bytes], start: int, *, limit: int | None) -> _Member:
    """One gzip member: its bytes, or without a limit only where it ends."""
    file.seek(start)
    inflate = zlib.decompressobj(wbits=31)
    pieces: list[bytes] = []
    size = 0
    while not inflate.eof:
        data = inflate.unconsumed_tail or file.read(_CHUNK_BYTES)
        if not data:
            return _Member(b"".join(pieces), None, f"the file ends inside it, after {size:,} bytes", is_cut=True)
        try:
            piece = inflate.decompress(data, _CHUNK_BYTES if limit is None else limit - size + 1)
        except zlib.error as error:
            return _Member(b"".join(pieces), None, f"gzip: {error}")
        size += len(piece)
        if limit is None:
            continue
        pieces.append(piece)
        if size > limit:
            return _Member(b"".join(pieces), None)
    return _Member(b"".join(pieces), file.tell() - len(inflate.unused_data))


def _next_member(file: IO[bytes], start: int) -> int | None:
    """The next place where a gzip member begins that begins with a record."""
    for place in _places(file, start, _GZIP_MAGIC):
        if _member(file, place, limit=len(_MAGIC)).data.startswith(_MAGIC):
            return place
    return None


def _plain(file: IO[bytes], max_record_bytes: int) -> Found:
    start: int | None = 0
    while start is not None and (head := _at(file, start, 4 << 10)):
        end_of_headers = _END_OF_HEADERS.search(head)
        if end_of_headers is None:
            head = _at(file, start, _MAX_HEADER_BYTES)
            end_of_headers = _END_OF_HEADERS.search(head)
        claimed = None if end_of_headers is None else _CONTENT_LENGTH.search(head, 0, end_of_headers.end())
        if not head.startswith(_MAGIC) or end_of_headers is None or claimed is None:
            missing = "no Content-Length" if end_of_headers else "its headers do not end"
            detail = missing if head.startswith(_MAGIC) else "no record begins here"
            yield Damage(str(start), DAMAGED, detail, _excerpt(head))
            start = _next_record(file, start + 1)
            continue
        begin, length = start + end_of_headers.end(), int(claimed[1])
        behind = _at(file, begin + length, 4)
        if behind.strip(b"\r\n"):
            detail = f"no record ends {length:,} bytes after its headers, as it claims"
            yield Damage(str(start), DAMAGED, detail, _excerpt(head))
            start = _next_record(file, begin)
            continue
        if length > max_record_bytes:
            yield Damage(str(start), TOO_LARGE, f"{length:,} bytes, at most {max_record_bytes:,}", _excerpt(head))
        else:
            payload = _at(file, begin, length)
            if len(payload) == length:
                yield Record(str(start), headers_of(head[: end_of_headers.end()]), payload)
            else:
                yield Damage(str(start), CUT_SHORT, f"{len(payload):,} of {length:,} bytes", _excerpt(head))
        blank = _END_OF_HEADERS.match(behind)
        start = begin + length + (len(behind) if blank is None else blank.end())


def _next_record(file: IO[bytes], start: int) -> int | None:
    return next((place + 1 for place in _places(file, max(start - 1, 0), b"\n" + _MAGIC)), None)


def _places(file: IO[bytes], start: int, mark: bytes) -> Iterator[int]:
    """Positions of `mark` from `start` on."""
    while block := _at(file, start, 1 << 20):
        at = block.find(mark)
        while at >= 0:
            yield start + at
            at = block.find(mark, at + 1)
        if len(block) < len(mark):
            return
        start += max(len(block) - len(mark) + 1, 1)


def _claims(head: bytes) -> int:
    """How long the first record says that it is."""
    length = _CONTENT_LENGTH.search(head, 0, _MAX_HEADER_BYTES)
    return int(length[1]) if length else 0


def _at(file: IO[bytes], start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _excerpt(data: bytes) -> str:
    return data[:200].decode(errors="backslashreplace")
