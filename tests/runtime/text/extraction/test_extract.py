"""Formats: each gives the text that a reader would see; what cannot be read is counted."""

import gzip
import io
import json
import random
import tarfile
import time
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.text.drops import DropLedger
from runtime.text.extraction.archive import is_archive, list_units
from runtime.text.extraction.extract import extract
from runtime.text.extraction.formats import (
    ChatTable,
    HtmlPages,
    JsonLines,
    ParquetTable,
    PlainText,
    PythonDocstrings,
    ServiceModels,
)
from runtime.text.extraction.records import _split
from tests.catalogue import check_message

SERVICE = {
    "metadata": {"serviceFullName": "Toy Service"},
    "documentation": "<p>A service for <b>toys</b>.</p>",
    "operations": {
        "Wind": {"documentation": "<p>Winds a toy &amp; lets it go.</p>", "input": {"shape": "WindRequest"}},
    },
    "shapes": {
        "WindRequest": {"members": {"Turns": {"documentation": "<p>How often.</p><ul><li>few</li><li>many</li></ul>"}}},
        "Key": {"documentation": "<p>The key of a toy.</p>", "members": {}},
    },
}

CODE = PlainText(members=("*.py",))


def read(path, *formats):
    ledger = DropLedger(5)
    name = "" if is_archive(str(path)) else path.name
    found, damage = list_units(str(path), name, formats, unit_bytes=100)
    if damage is not None:
        ledger.drop("damaged file", document_id="toys", detail=damage, text="")
    return {doc.id: doc.text for unit in found for doc in extract(unit, formats, "toys", ledger)}, ledger


def archive_of(tmp_path, members):
    path = tmp_path / "toys.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def parquet(rows):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("format_", "name", "data", "expected"),
    [
        (
            ServiceModels(),
            "toy/service-2.json.gz",
            gzip.compress(json.dumps(SERVICE).encode()),
            {
                "toys/toy/service-2.json.gz#service": "Toy Service\n\nA service for toys.",
                "toys/toy/service-2.json.gz#operation/Wind": "Wind\n\nWinds a toy & lets it go.\n\nRequest\n\nTurns\n\n"
                "How often.\n\n  • few\n  • many",
                "toys/toy/service-2.json.gz#shape/Key": "Key\n\nThe key of a toy.",
            },
        ),
        (
            HtmlPages(main_content=False),
            "page.html",
            "<html><script>x()</script><h1>Größe</h1><p>One<br>two</p></html>".encode(),
            {"toys/page.html": "Größe\n\nOne\ntwo"},
        ),
        (PlainText(), "a.txt", b"A  toy.\n\n\n  Wound.\n", {"toys/a.txt": "A  toy.\n\n\n  Wound.\n"}),
        (
            PythonDocstrings(),
            "a.py",
            b'"""Module."""\nclass C:\n  """A class."""\n  def f(self, x=1):\n    """A method."""\ndef g():\n  pass\n',
            {"toys/a.py": "Module.", "toys/a.py#C": "C\n\nA class.\n\nC.f(self, x=1)\n\nA method."},
        ),
        (
            JsonLines(),
            "a.jsonl",
            b'{"id": "x", "text": "one"}\n\n{"text": "two"}\n',
            {"toys/a.jsonl#x": "one", "toys/a.jsonl#line 3": "two"},
        ),
        (JsonLines(), "a.jsonl.gz", gzip.compress(b'{"text": "one"}\n'), {"toys/a.jsonl.gz#line 1": "one"}),
        (
            JsonLines(text_field="body", id_field=None),
            "a.jsonl.zst",
            pa.compress(b'{"body": "one"}\n{"body": "two"}', codec="zstd", asbytes=True),
            {"toys/a.jsonl.zst#line 1": "one", "toys/a.jsonl.zst#line 2": "two"},
        ),
        (ParquetTable(), "a.parquet", parquet([{"id": 7, "text": "one"}]), {"toys/a.parquet#7": "one"}),
        (
            ChatTable(),
            "a.parquet",
            parquet([{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}]),
            {"toys/a.parquet#row 1": "User: Hi\n\nAssistant: Ho"},
        ),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "members") else "",
)
def test_a_format_gives_the_text_that_a_reader_would_see(tmp_path, format_, name, data, expected):
    documents, ledger = read(archive_of(tmp_path, {name: data, "other.bin": b"\0"}), format_)
    assert documents == expected
    assert not ledger.counts


def test_a_file_that_is_no_archive_is_read_as_it_is(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n'))
    documents, _ = read(tmp_path / "a.jsonl.gz", JsonLines())
    assert documents == {"toys/a.jsonl.gz#line 1": "one"}


@pytest.mark.parametrize(
    ("format_", "name", "data", "reason"),
    [
        (HtmlPages(), "a.html", b"<p>na\xefve\0</p>", "no charset fits"),
        (PlainText(), "a.rst", b"na\xefve", "not UTF-8"),
        (JsonLines(), "a.jsonl", b'{"text": "na\xefve"}', "not UTF-8"),
        (JsonLines(), "a.jsonl", b'{"text": "\\ud800"}', "not UTF-8"),
        (JsonLines(), "a.jsonl", b'{"text": ', "not a JSON object"),
        (JsonLines(), "a.jsonl", b'["text"]', "not a JSON object"),
        (JsonLines(), "a.jsonl", b'{"id": "x"}', "no text"),
        (JsonLines(), "a.jsonl", b'{"text": 3}', "no text"),
        (JsonLines(), "a.jsonl", b'{"text": " "}', "no text"),
        (PythonDocstrings(), "a.py", b"def f(:\n", "not Python"),
        (ServiceModels(), "a/service-2.json.gz", b"plain", "not a gzipped JSON service model"),
    ],
)
def test_an_unreadable_member_is_counted_and_sampled(tmp_path, format_, name, data, reason):
    documents, ledger = read(archive_of(tmp_path, {name: data}), format_)
    assert documents == {}
    assert ledger.counts == {reason: 1}
    assert ledger.samples[0]["id"].startswith(f"toys/{name}")


@pytest.mark.parametrize(
    ("charset", "declared", "source"),
    [("windows-1252", "iso-8859-1", "page"), ("utf-8", "utf-8", "bytes"), ("koi8-r", "koi8-r", "page")],
)
def test_a_page_is_read_in_the_charset_that_it_declares(tmp_path, charset, declared, source):
    words = "Größe – “naïve”" if charset != "koi8-r" else "Игрушка у окна"
    page = f'<html><head><meta charset="{declared}"></head><body><p>{words}</p></body></html>'
    path = archive_of(tmp_path, {"a.html": page.encode(charset)})
    (unit,) = list_units(str(path), "", (HtmlPages(main_content=False),), unit_bytes=100).units
    (document,) = extract(unit, (HtmlPages(main_content=False),), "toys", DropLedger(5))
    assert document.text == words
    assert json.loads(document.metadata)["charset_from"] == source


def test_an_unreadable_archive_is_counted(tmp_path):
    path = archive_of(tmp_path, {"a.py": b"x = 1\n" * 100})
    path.write_bytes(path.read_bytes()[:-40])
    documents, ledger = read(path, CODE)
    assert documents == {}
    (sample,) = ledger.samples
    check_message(sample["detail"])


def test_a_damaged_member_costs_no_other(tmp_path):
    path = archive_of(tmp_path, dict.fromkeys(("a.py", "b.py"), b"x = 1\n" * 100))
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(bytes(data))
    documents, ledger = read(path, CODE)
    assert list(documents) == ["toys/b.py"]
    (sample,) = ledger.samples
    assert sample["reason"] == "damaged file"
    check_message(sample["detail"])


class Trickle(io.BytesIO):
    """A stream that returns at most 512 bytes a read."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(512)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 2_000])
def test_lines_do_not_depend_on_the_blocks_of_a_stream(size):
    lines = [b"a" * size, b"", b"b", b"c" * size]
    assert list(_split(Trickle(b"\n".join(lines)), 1 << 30)) == (lines if size else lines[:3])
    assert list(_split(Trickle(b"\n".join(lines) + b"\n"), 1 << 30)) == lines


def test_a_long_line_takes_linear_time():
    began = time.process_time()
    assert list(_split(Trickle(b"x" * (8 << 20) + b"\ny"), 1 << 30)) == [b"x" * (8 << 20), b"y"]
    assert time.process_time() - began < 2  # of 0.02 s; each piece joined to all before it takes 20


@pytest.mark.parametrize("unique_ids", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_documents_before_the_cut_of_a_file_are_kept(tmp_path, name, unique_ids):
    chance = random.Random(0)
    lines = "".join(json.dumps({"text": chance.randbytes(2_000).hex()}) + "\n" for _ in range(600))
    whole = {
        "a.jsonl.gz": gzip.compress(lines.encode()),
        "a.jsonl.zst": pa.compress(lines.encode(), codec="zstd", asbytes=True),
        "a.parquet": parquet([{"text": "one"}]),
    }[name]
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    documents, ledger = read(
        tmp_path / name, ParquetTable() if name.endswith("parquet") else JsonLines(unique_ids=unique_ids)
    )
    assert ledger.counts == {"damaged file": 1}
    assert bool(documents) == (name != "a.parquet")


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_a_tar_archive_gives_the_documents_of_a_zip_archive(tmp_path, suffix):
    files = {f"{index}.py": f"x = {index}\n".encode() * 30 for index in range(4)} | {"skip.bin": b"\0"}
    expected, _ = read(archive_of(tmp_path, files), CODE)
    path = tmp_path / f"toys{suffix}"
    mode = {".tar.gz": "w:gz", ".tar.xz": "w:xz"}.get(suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, data in reversed(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    if suffix == ".tar.zst":
        path.write_bytes(pa.compress(path.read_bytes(), codec="zstd", asbytes=True))
    found, ledger = read(path, CODE)
    assert found == expected
    assert not ledger.counts
    listing = list_units(str(path), "", (CODE,), unit_bytes=100)
    assert (len(listing.units), listing.damage) == (4 if suffix == ".tar" else 1, None)
    path.write_bytes(path.read_bytes()[:100])
    listing = list_units(str(path), "", (CODE,), unit_bytes=100)
    assert not listing.units
    assert listing.damage is not None


def test_units_cut_an_archive_by_its_table_of_contents(tmp_path):
    path = archive_of(tmp_path, {f"{index}.py": b"x" * 60 for index in range(5)} | {"skip/a.py": b"x"})
    found = list_units(str(path), "", (PlainText(members=("*.py",), exclude=("skip/*",)),), unit_bytes=100)
    assert [unit.members for unit in found.units] == [("0.py", "1.py"), ("2.py", "3.py"), ("4.py",)]
