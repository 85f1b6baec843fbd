"""Limits: a file that unpacks a hundredfold, and a document above a size, are left out and counted."""

import gzip
import io
import tarfile
import zipfile

import pytest

from runtime.text.drops import DropLedger
from runtime.text.extraction import limits
from runtime.text.extraction.archive import list_units
from runtime.text.extraction.extract import extract
from runtime.text.extraction.formats import JsonLines, PlainText, ServiceModels
from runtime.text.extraction.limits import Limits

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
