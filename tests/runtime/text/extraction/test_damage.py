"""Damaged files: none ends a step, and the damage is counted where the file carries a checksum."""

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import warnings
import zipfile

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile

from runtime.text.drops import DropLedger
from runtime.text.extraction.archive import is_archive, list_units, open_members
from runtime.text.extraction.extract import extract
from runtime.text.extraction.formats import (
    ChatTable,
    HtmlPages,
    JsonLines,
    ParquetTable,
    PlainText,
    PythonDocstrings,
    ServiceModels,
    WebArchive,
)
from runtime.text.extraction.limits import DEFAULTS

WORDS = "toy wound window morning sea alone walked wooden key child play gentle river valley boats farmers".split()  # noqa: SIM905


def prose(seed):
    return " ".join(random.Random(seed).choices(WORDS, k=120))


def parquet(rows, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, **options)
    return buffer.getvalue()


def records():
    for seed in range(6):
        page = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>{prose(seed)}</p>".encode()
        yield (
            b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
            % (len(page), page)
        )


LINES = "".join(json.dumps({"text": prose(seed)}) + "\n" for seed in range(20)).encode()
ROWS = [{"text": prose(seed)} for seed in range(20)]
CHATS = [{"messages": [{"role": "user", "content": prose(seed)}]} for seed in range(20)]
MODEL = {"operations": {str(seed): {"documentation": f"<p>{prose(seed)}</p>"} for seed in range(6)}, "shapes": {}}
CODE = "".join(f'def f{seed}():\n    """{prose(seed)}"""\n' for seed in range(6)).encode()
# Name, bytes, format, and whether its bytes carry checksums of all that is read.
FILES = {
    "lines": ("a.jsonl", LINES, JsonLines(), False),
    "lines-gz": ("a.jsonl.gz", gzip.compress(LINES, mtime=0), JsonLines(), True),
    "lines-zst": ("a.jsonl.zst", pa.compress(LINES, codec="zstd", asbytes=True), JsonLines(unique_ids=True), False),
    "table": ("a.parquet", parquet(ROWS, row_group_size=5), ParquetTable(), False),
    "table-checked": ("a.parquet", parquet(ROWS, write_page_checksum=True), ParquetTable(), False),
    "chats": ("a.parquet", parquet(CHATS, row_group_size=5), ChatTable(), False),
    "crawl": ("a.warc", b"".join(records()), WebArchive(), False),
    "crawl-gz": ("a.warc.gz", b"".join(gzip.compress(each, mtime=0) for each in records()), WebArchive(), True),
    "crawl-gz-whole": ("a.warc.gz", gzip.compress(b"".join(records()), mtime=0), WebArchive(), True),
    "model": ("a/service-2.json.gz", gzip.compress(json.dumps(MODEL).encode(), mtime=0), ServiceModels(), True),
    "page": ("a.html", f"<meta charset=koi8-r><h1>a</h1><p>{prose(1)}".encode(), HtmlPages(), False),
    "docstrings": ("a.py", CODE, PythonDocstrings(), False),
    "text": ("a.txt", prose(1).encode(), PlainText(), False),
}  # fmt: skip
PACKS = {
    "zip": lambda name, data: zipped(name, data),
    "tar": lambda name, data: tarred(name, data),
    "tar.gz": lambda name, data: gzip.compress(tarred(name, data), mtime=0),
    "tar.bz2": lambda name, data: bz2.compress(tarred(name, data)),
    "tar.xz": lambda name, data: lzma.compress(tarred(name, data)),
    "tar.zst": lambda name, data: pa.compress(tarred(name, data), codec="zstd", asbytes=True),
}
CHECKED_PACKS = ("zip", "tar.gz", "tar.bz2", "tar.xz")


def members(name, data):
    """Return the member between two other files, so that damage of the archive is not always damage of the member."""
    return {"0.bin": random.Random(0).randbytes(2_000), name: data, "z.bin": random.Random(1).randbytes(2_000)}


def zipped(name, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for each, content in members(name, data).items():
            packed.writestr(zipfile.ZipInfo(each), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(name, data):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for each, content in members(name, data).items():
            info = tarfile.TarInfo(each)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def damaged(data, seed):
    """Return the data cut short, with a flipped bit, with zeros in it, or with a piece copied to another place."""
    chance = random.Random(seed)
    found = bytearray(data)
    match seed % 4:
        case 0:
            return data[: chance.randrange(1, len(data))]
        case 1:
            found[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 2:
            start = chance.choice((0, chance.randrange(len(data)), len(data) - 8))
            found[start : start + 8] = b"\0" * len(found[start : start + 8])
        case 3:
            start = chance.randrange(len(data))
            found[start : start + 40] = data[:40]
    return bytes(found)


def read(path, format_):
    ledger = DropLedger(5)
    units, damage = list_units(path, "" if is_archive(path) else path.rsplit("/", 1)[-1], (format_,), unit_bytes=100)
    if damage is not None:
        ledger.drop("damaged file", document_id="toys", detail=damage, text="")
    documents = {document.id: document.text for unit in units for document in extract(unit, (format_,), "toys", ledger)}
    return documents, ledger


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_never_fatal_and_one_with_checksums_never_silent(tmp_path, kind):
    name, data, format_, is_checked = FILES[kind]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    format_ = type(format_)(**{**vars(format_), "members": ("*",)})
    whole, ledger = read(str(path), format_)
    assert whole
    assert not ledger.counts
    for seed in range(40):
        path.write_bytes(damaged(data, seed))
        found, ledger = read(str(path), format_)
        assert ledger.counts or not is_checked or found == whole, seed
        json.dumps(ledger.samples).encode()


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("kind", ["lines", "lines-zst", "table", "crawl", "crawl-gz", "model", "text"])
def test_a_damaged_archive_is_never_fatal_and_one_with_checksums_never_silent(tmp_path, pack, kind):
    name, data, format_, is_checked = FILES[kind]
    path = tmp_path / f"a.{pack}"
    packed = PACKS[pack](name, data)
    path.write_bytes(packed)
    whole, ledger = read(str(path), format_)
    assert whole
    assert not ledger.counts
    # The table of contents of a zip archive carries none.
    end = packed.index(b"PK\1\2") if pack == "zip" else len(packed)
    for seed in range(16):
        path.write_bytes(damaged(packed[:end], seed) + packed[end:])
        found, ledger = read(str(path), format_)
        assert ledger.counts or not (is_checked or pack in CHECKED_PACKS) or found == whole, seed


def test_a_page_of_a_table_that_fails_its_checksum_is_damage_and_the_rows_before_it_stay(tmp_path):
    rows = [{"text": prose(seed)} for seed in range(40)]
    options = {"row_group_size": 10, "use_dictionary": False, "compression": "none", "write_page_checksum": True}
    data = bytearray(parquet(rows, **options))
    data[data.index(rows[35]["text"].encode())] ^= 1
    (tmp_path / "a.parquet").write_bytes(data)
    found, ledger = read(str(tmp_path / "a.parquet"), ParquetTable())
    assert list(found.values()) == [row["text"] for row in rows[: len(found)]]
    assert ledger.counts == {"damaged file": 1}


@pytest.mark.parametrize("bad", [{"role": None, "content": "Hi"}, {"role": "user", "content": None}])
def test_a_chat_with_a_turn_without_role_or_content_is_dropped_and_the_others_stay(tmp_path, bad):
    good = {"role": "user", "content": "Hi"}
    rows = [{"messages": [good, bad]}, {"messages": [good]}, {"messages": None}]
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    found, ledger = read(str(tmp_path / "a.parquet"), ChatTable())
    assert found == {"toys/a.parquet#row 2": "User: Hi"}
    assert ledger.counts == {"no text": 2}


def test_odd_turns_and_strings_that_are_not_utf8_are_counted(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet([{"messages": ["Hi"]}]))
    assert read(str(tmp_path / "a.parquet"), ChatTable())[1].counts == {"no text": 1}
    table = pa.table({"text": pa.array([b"one", b"na\xefve", b"two"])})
    column = pa.StringArray.from_buffers(3, table["text"].chunk(0).buffers()[1], table["text"].chunk(0).buffers()[2])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    found, ledger = read(str(tmp_path / "a.parquet"), ParquetTable())
    assert found == {"toys/a.parquet#row 1": "one", "toys/a.parquet#row 3": "two"}
    assert ledger.counts == {"not UTF-8": 1}


@pytest.mark.parametrize(
    ("name", "data", "format_", "reason"),
    [
        ("a.jsonl", b"[" * 100_000, JsonLines(), "not a JSON object"),
        ("a.jsonl", b'{"id": ' + b"[" * 100_000, JsonLines(unique_ids=True), "not a JSON object"),
        ("a.jsonl", b'{"id": "\\ud800", "text": "a"}', JsonLines(), "not UTF-8"),
        ("a/service-2.json.gz", gzip.compress(b"[" * 100_000), ServiceModels(), "not a gzipped JSON service model"),
        ("a/service-2.json.gz", gzip.compress(b'{"shapes": 1}'), ServiceModels(), "not a gzipped JSON service model"),
        ("a.py", b'def f():\n    """\\ud800"""', PythonDocstrings(), "not UTF-8"),
        ("a.py", b"-" * 100_000 + b"1", PythonDocstrings(), "not Python"),
        ("a.warc", b"WARC/1.0\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n", WebArchive(), "WARC: damaged record"),
        ("a.warc", b"WARC/1.0\r\nContent-Length: " + b"9" * 20 + b"\r\n\r\n", WebArchive(), "WARC: damaged record"),
        ("a.parquet", parquet([{"body": "a"}]), ParquetTable(), "damaged file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_odd_input_is_counted(tmp_path, name, data, format_, reason):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(name, data)
    found, ledger = read(str(path), format_)
    assert found == {}
    assert ledger.counts == {reason: 1}


@pytest.mark.parametrize(("format_", "column"), [(ParquetTable(), "text"), (ParquetTable(), "id"), (ChatTable(), "id")])
def test_a_table_with_two_columns_of_one_name_is_damaged(tmp_path, format_, column):
    columns = {"id": pa.array(["a"]), "text": pa.array(["one"]), "messages": pa.array([CHATS[0]["messages"]])}
    names = [*columns, column]
    pq.write_table(pa.Table.from_arrays([columns[name] for name in names], names=names), tmp_path / "a.parquet")
    found, ledger = read(str(tmp_path / "a.parquet"), format_)
    assert (found, ledger.counts) == ({}, {"damaged file": 1})


def test_a_service_model_without_shapes_gives_the_pages_that_it_has(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a/service-2.json.gz"
    model = {"operations": {"Wind": {"documentation": "<p>Winds.</p>", "input": {"shape": "W"}}}}
    path.write_bytes(gzip.compress(json.dumps(model).encode()))
    found, ledger = read(str(path), ServiceModels(members=("*",)))
    assert found == {"toys/service-2.json.gz#operation/Wind": "Wind\n\nWinds."}
    assert not ledger.counts


def test_a_formula_that_is_nested_too_deeply_gives_the_text_in_it(tmp_path):
    path = tmp_path / "a.html"
    formula = "<msup>" * 3_000 + "<mi>x</mi>" + "</msup>" * 3_000
    path.write_text(f"<p>Before.</p><math>{formula}</math><p>After.</p>")
    (text,) = read(str(path), HtmlPages(main_content=False))[0].values()
    assert text.startswith("Before.")
    assert text.count("x") == 1


def test_members_of_a_tar_archive_before_the_cut_stay(tmp_path):
    for suffix, compress in (("tar", bytes), ("tar.gz", gzip.compress)):
        path = tmp_path / f"a.{suffix}"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as packed:
            for number in range(6):
                content = random.Random(number).randbytes(3_000).hex().encode()
                info = tarfile.TarInfo(f"{number}.py")
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
        data = compress(buffer.getvalue())
        path.write_bytes(data[: len(data) * 3 // 4])
        found, ledger = read(str(path), PlainText(members=("*.py",)))
        assert [name for name in found if name < "toys/4"] == [f"toys/{number}.py" for number in range(4)]
        assert ledger.counts["damaged file"] >= 1


def test_a_damaged_tar_header_does_not_end_the_archive_silently(tmp_path):
    data = bytearray(tarred("a.py", b"x = 1\n" * 200))
    data[data.index(b"z.bin")] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    found, ledger = read(str(tmp_path / "a.tar"), PlainText(members=("*.py",)))
    assert list(found) == ["toys/a.py"]
    assert ledger.counts == {"damaged file": 1}


@pytest.mark.parametrize("error", [TimeoutError("too slow"), OSError("gone"), ValueError("bad answer"), EOFError()])
@pytest.mark.parametrize("kind", ["table", "lines-gz", "crawl-gz", "text"])
@pytest.mark.parametrize("pack", [None, "zip", "tar", "tar.gz"])
def test_a_store_failure_is_no_damage_of_the_file(monkeypatch, pack, kind, error):
    name, data, format_, _ = FILES[kind]
    path = f"memory://store/{kind}/" + (f"a.{pack}" if pack else name)
    with fsspec.open(path, "wb") as file:
        file.write(PACKS[pack](name, data) if pack else data)
    units, _ = list_units(path, "" if pack else name, (format_,), unit_bytes=100)

    def fail(*_):
        raise error

    monkeypatch.setattr(MemoryFile, "read", fail)
    ledger = DropLedger(5)
    with pytest.raises(type(error)) as raised:
        list(extract(units[0], (format_,), "toys", ledger))
    assert raised.value is error
    if pack:
        with pytest.raises(type(error)):
            list_units(path, "", (format_,), unit_bytes=100)
    assert not ledger.counts


@pytest.mark.parametrize("pack", ["zip", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_changed_byte_in_an_archive_with_checksums_is_counted(tmp_path, pack):
    """Pack without compression where the format allows it, so that only the checksum shows the change."""
    text = random.Random(0).randbytes(3_000)
    packed = {
        "zip": lambda: stored("a.rst", text.hex().encode()),
        "tar.gz": lambda: gzip.compress(tarred("a.rst", text.hex().encode()), compresslevel=0),
        "tar.bz2": lambda: bz2.compress(tarred("a.rst", text.hex().encode())),
        "tar.xz": lambda: lzma.compress(tarred("a.rst", text.hex().encode())),
    }[pack]()
    data = bytearray(packed)
    data[len(data) // 2] ^= 1
    path = tmp_path / f"a.{pack}"
    path.write_bytes(data)
    assert read(str(path), PlainText())[1].counts["damaged file"] >= 1


def stored(name, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz"])
def test_two_members_of_one_name_are_damage_and_one_of_them_is_read(suffix, tmp_path):
    path = str(tmp_path / f"a.{suffix}")
    texts = [json.dumps({"text": text}).encode() for text in ("first", "second", "third")]
    if suffix == "zip":
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
            warnings.simplefilter("ignore")
            for text in texts:
                archive.writestr("x.jsonl", text)
    else:
        with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w") as archive:
            for text in texts:
                info = tarfile.TarInfo("x.jsonl")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
    for unit_bytes in (1, 1 << 20):
        listing = list_units(path, "a", (JsonLines(),), unit_bytes=unit_bytes)
        (unit,) = listing.units
        ((name, content),) = [(name, opened().read()) for name, opened in open_members(unit, DEFAULTS)]
        assert (name, content in texts) == ("a/x.jsonl", True)
        assert listing.damage is not None
