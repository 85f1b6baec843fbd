"""WARC files made of their own marks: reading costs a bounded number of bytes for each byte of the file."""

import gzip
import io
import struct
import zlib

import pytest

from runtime.text.extraction import warc
from runtime.text.extraction.limits import Limits
from runtime.text.extraction.warc import TOO_DAMAGED, Damage, Record, read_records
from tests.runtime.text.extraction.test_web_archive import member, record

MEMBER_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


class CountedFile(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    num_read = 0

    def read(self, size=-1):
        data = super().read(size)
        self.num_read += len(data)
        return data


def stored_block(data):
    return b"\0" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data


def nested_members(count):
    """Return members that begin with a record's mark, each inside the one before it, of which none ends."""
    data = b""
    for _ in range(count):
        data = MEMBER_HEAD + stored_block(b"WARC/1.0" + data[:65_000])
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"\nWARC/" * 50_000,
        b"WARC/1.0\r\n" * 30_000,
        b"WARC/1.0\r\nContent-Length: 30000000\r\n\r\n" * 8_000,
        b"WARC/1.0\r\nContent-Length: 100\r\n\r\n" * 8_000,
        (b"WARC/1.0\r\n" + b"a" * 5_000) * 60,
        b"\x1f\x8b\x08" * 100_000,
    ],
    ids=["marks", "versions", "beyond the end", "false lengths", "endless headers", "gzip marks"],
)
def test_a_file_made_of_marks_costs_a_bounded_number_of_bytes(data):
    file = CountedFile(data)
    found = list(read_records(file, Limits()))
    assert all(isinstance(one, Damage) for one in found)
    marks = 512 * data.count(b"\x1f\x8b\x08")  # each is probed
    assert file.num_read < 20 * len(data) + marks + 10_000 * len(found)


def test_bytes_that_are_unpacked_in_vain_have_a_limit(monkeypatch):
    monkeypatch.setattr(warc, "_FREE_VAIN_BYTES", 10_000)
    data = member(0) + nested_members(2_000)
    file = CountedFile(data)
    found = list(read_records(file, Limits()))
    assert isinstance(found[0], Record)
    assert [one.reason for one in found if isinstance(one, Damage)][-1] == TOO_DAMAGED
    assert file.num_read < 200 * len(data)


def test_a_record_that_unpacks_a_thousandfold_is_too_large_and_costs_no_other():
    bomb = gzip.compress(record(1, b"a" * 50_000_000))
    found = list(read_records(io.BytesIO(member(0) + bomb + member(2)), Limits(max_document_bytes=1 << 20)))
    assert [type(one) for one in found] == [Record, Damage, Record]
    assert found[1].reason == "too large"


def test_a_whole_file_that_unpacks_a_thousandfold_is_read_up_to_the_ratio(monkeypatch):
    monkeypatch.setattr("runtime.text.extraction.limits.FREE_BYTES", 1 << 20)
    pack = zlib.compressobj(9, wbits=31)
    data = b"".join(pack.compress(record(number, b"a" * 500_000)) for number in range(100)) + pack.flush()
    found = list(read_records(io.BytesIO(data), Limits()))
    assert isinstance(found[0], Record)
    assert len(found) < 100
    assert found[-1].reason == "too large"
