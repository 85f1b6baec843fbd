"""Limits: a file that unpacks a hundredfold, and a document above a size, are left out and counted."""

import gzip
import io
import multiprocessing
import signal
import struct
import subprocess
import sys
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.text.drops import DropLedger
from runtime.text.extraction import limits
from runtime.text.extraction.archive import list_units, list_zip
from runtime.text.extraction.extract import DAMAGED_FILE, extract
from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.formats import JsonLines, PlainText, ServiceModels, Unit
from runtime.text.extraction.guard import Limited, unguarded
from runtime.text.extraction.limits import Limits
from runtime.text.extraction.parquet_rows import read_rows
from steps.extract import _list_file
from tests.catalogue import check_message, expect_error

LINES = b'{"text": "a toy"}\n' * 100 + b" " * 2_000_000


@pytest.fixture(autouse=True)
def no_free_bytes(monkeypatch):
    monkeypatch.setattr(limits, "FREE_BYTES", 100_000)


def counts(path, format_, bounds):
    ledger = DropLedger(5)
    listing = list_units(str(path), "", (format_,), unit_bytes=1 << 30, limits=bounds)
    if listing.damage is not None:
        ledger.drop("damaged file", document_id="toys", detail=listing.damage, text="")
    texts = [
        document.text for unit in listing.units for document in extract(unit, (format_,), "toys", ledger, limits=bounds)
    ]
    return len(texts), dict(ledger.counts)


def zipped(path, name, data):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)


def tarred(path, name, data):
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(("pack", "name"), [(zipped, "a.zip"), (tarred, "a.tar.gz")])
def test_a_file_that_unpacks_beyond_the_ratio_is_damaged_from_there_on(tmp_path, pack, name):
    pack(tmp_path / name, "a.jsonl", LINES)
    assert set(counts(tmp_path / name, JsonLines(), Limits())[1]) == {"damaged file"}
    assert counts(tmp_path / name, JsonLines(), Limits(max_expansion=2_000)) == (100, {})


@pytest.mark.parametrize(
    ("name", "data", "format_"),
    [
        ("a.txt", b"toy " * 10_000, PlainText()),
        ("a/service-2.json.gz", gzip.compress(b'{"shapes": "' + b"a" * 40_000), ServiceModels()),
    ],
)
def test_a_document_above_the_size_is_too_large(tmp_path, name, data, format_):
    zipped(tmp_path / "a.zip", name, data)
    assert counts(tmp_path / "a.zip", format_, Limits(max_document_bytes=39_999)) == (0, {"too large": 1})


def zip_of_many_members(path):
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0)
    directory = b"".join(entry + b"%05d." % number for number in range(30_000))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)
    path.write_bytes(directory + end)


def test_a_zip_archive_whose_list_takes_too_long_is_named_after_the_death_of_the_first_reader(tmp_path):
    path, being_read = tmp_path / "a.zip", tmp_path / "being-read"
    zip_of_many_members(path)
    arguments = ((PlainText(),), Limits(max_document_seconds=0.02), 100, str(being_read), (str(path), ""), "")
    reader = multiprocessing.get_context("spawn").Process(target=_list_file, args=arguments)
    reader.start()
    reader.join()
    assert reader.exitcode == -signal.SIGPROF and len(list(being_read.iterdir())) == 1
    listed = _list_file(*arguments)
    assert listed.units == () and str(path) in (listed.damage or "")
    check_message(listed.damage)
    assert not list(being_read.iterdir())
    assert list_zip(unguarded, str(path), "", (PlainText(),), unit_bytes=100).damage is None


def test_the_list_of_a_zip_archive_does_not_count_as_time_of_the_member_that_is_read(tmp_path):
    path = tmp_path / "a.zip"
    zip_of_many_members(path)
    bounds = Limits(max_document_seconds=0.02)
    ledger = DropLedger(5)
    unit = Unit(str(path), "", 0, ("00000.",))
    assert not list(extract(unit, (PlainText(),), "toys", ledger, limits=bounds, guard=Limited(bounds)))
    assert ledger.counts == {DAMAGED_FILE: 1}


def test_a_zip_archive_of_very_many_members_is_damaged(tmp_path):
    zip_of_many_members(tmp_path / "a.zip")
    program = (
        "import sys\n"
        "from runtime.text.extraction.archive import list_zip\n"
        "from runtime.text.extraction.formats import PlainText\n"
        "from runtime.text.extraction.guard import Limited\n"
        "from runtime.text.extraction.limits import Limits\n"
        "bounds = Limits(max_document_memory=4 << 20, max_document_seconds=9)\n"
        "print(list_zip(Limited(bounds), sys.argv[1], '', (PlainText(),), unit_bytes=1 << 30, limits=bounds))"
    )
    # In a process of its own: the heap of a long test run has room that the limit does not see.
    command = [sys.executable, "-c", program, str(tmp_path / "a.zip")]
    for _ in range(3):  # CPython seldom loops for ever without memory; the limit of time then ends it
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != -signal.SIGPROF:
            break
    done.check_returncode()
    assert "units=[]" in done.stdout and "max_document_memory" in done.stdout


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_header_of_gigabytes_is_never_read(tmp_path, kind):
    info = tarfile.TarInfo("a")
    info.type, info.size = kind, 3 << 30
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(info.tobuf())
        file.truncate(4 << 30)
    bounds = Limits(max_document_memory=64 << 20)
    listing = list_units(str(tmp_path / "a.tar"), "", (PlainText(),), unit_bytes=1 << 30, limits=bounds)
    assert listing.units == [] and str(info.size)[:1] in (listing.damage or "")


def test_a_parquet_footer_has_limits(tmp_path):
    names = [f"column {number}" for number in range(100)]
    pq.write_table(pa.table({name: ["a toy"] for name in [*names, "text"]}), tmp_path / "a.parquet")
    with (tmp_path / "a.parquet").open("rb") as file:
        assert [row for _, row in read_rows(file, "a", "text", None, Limits(), unguarded)] == [{"text": "a toy"}]
        with expect_error(DamagedFileError):
            list(read_rows(file, "a", "text", None, Limits(max_document_bytes=5_000), unguarded))
        with expect_error(DamagedFileError):
            list(read_rows(file, "a", "words", None, Limits(), unguarded))
