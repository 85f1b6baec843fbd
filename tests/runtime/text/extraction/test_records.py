"""Records as others write them: ids, chats, binary columns, empty and very dense files, each counted or read right."""

import contextlib
import datetime
import gzip
import io
import json
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.drops import DropLedger
from runtime.text.extraction import limits, parquet_rows, records
from runtime.text.extraction.archive import covers, list_units
from runtime.text.extraction.chats import ChatError, chat_text
from runtime.text.extraction.extract import extract
from runtime.text.extraction.formats import ChatTable, Format, JsonLines, ParquetTable, WebArchive
from runtime.text.extraction.guard import DEADLY, Guard, Guarded, unguarded
from runtime.text.extraction.limits import Limits
from runtime.text.extraction.limits import zstd as zstd_module
from runtime.text.extraction.records import MEMORY_PER_BYTE, Anchors
from tests.catalogue import expect_error
from tests.runtime.text.extraction import deadly_readers


def read(
    path: Path, format_: Format, bounds: Limits = limits.DEFAULTS, guard: Guard = unguarded
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Return anchors and texts, and the counts of what was left out."""
    ledger = DropLedger(5)
    (unit,), _ = list_units(str(path), path.name, (format_,), unit_bytes=100, limits=bounds)
    found = [
        (document.id.partition("#")[2], document.text)
        for document in extract(unit, (format_,), "toys", ledger, limits=bounds, guard=guard)
    ]
    return found, dict(ledger.counts)


def lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, columns: dict[str, object], **options: object) -> Path:
    pq.write_table(pa.table(columns), path, **options)  # type: ignore[arg-type]
    return path


# Ids


def test_duplicate_ids_and_ids_in_our_own_form_become_distinct(tmp_path):
    given = ["line 2", None, "a", "a", "a (line 4)", "a"]
    rows = [{"text": str(number)} | ({} if name is None else {"id": name}) for number, name in enumerate(given)]
    found, counts = read(lines(tmp_path / "a.jsonl", rows), JsonLines())
    assert [anchor for anchor, _ in found] == [
        "line 2 (line 1)", "line 2", "a", "a (line 4)", "a (line 4) (line 5)", "a (line 6)",
    ]  # fmt: skip
    assert not counts


def test_ids_that_have_to_be_unique_stay_as_they_are(tmp_path):
    rows = [{"text": "a toy", "id": name} for name in ("a", "b/c", "line 1", 4)]
    found, counts = read(lines(tmp_path / "a.jsonl", rows), JsonLines(unique_ids=True))
    assert [anchor for anchor, _ in found] == ["a", "b/c", "line 1 (line 3)", "4"]
    assert not counts


@given(given=st.lists(st.none() | st.sampled_from(["a", "line 1", "line 2", "a (line 2)", "a (line 3)"]), max_size=8))
def test_no_two_anchors_of_a_file_are_equal(given):
    of_file = Anchors()
    made = [
        own if name is None else of_file.anchor(name, own)
        for own, name in ((f"line {number}", name) for number, name in enumerate(given, start=1))
    ]
    assert len(set(made)) == len(made)


# Columns and chats


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_text_and_ids_as_plain_binary_are_read(tmp_path, kind):
    columns = {"text": pa.array([b"na\xc3\xafve", b"na\xefve", b"two"], kind), "id": pa.array([b"x", b"y", b"z"], kind)}
    found, counts = read(parquet(tmp_path / "a.parquet", columns), ParquetTable())
    assert found == [("x", "na\u00efve"), ("z", "two")]
    assert counts == {"not UTF-8": 1}


CALL = {"function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
CHATS = {
    "null content beside a tool call": (
        [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        'User: Rain?\n\nAssistant: weather({"city": "Paris"})',
    ),
    "content and arguments as an object": (
        [{"role": "assistant", "content": "Wait.", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}],
        'Assistant: Wait.\nf({"x": 1})',
    ),
    "from and value": (
        [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}, {"from": "system", "value": "S"}],
        "User: Hi\n\nAssistant: Ho\n\nSystem: S",
    ),
    "parts": (
        [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
        "User: one\ntwo",
    ),
    "a part that is no text": ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], None),
    "null content alone": ([{"role": "user", "content": None}], None),
    "a call without a name": ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}], None),
    "calls that are no list": ([{"role": "assistant", "content": "Hi", "tool_calls": 1}], None),
    "no role": ([{"content": "Hi"}], None),
    "no turns": (None, None),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("kind", CHATS)
def test_chat_rows_as_the_tools_in_use_write_them(tmp_path, kind, name):
    turns, expected = CHATS[kind]
    good = [{"role": "user", "content": "Hi"}]
    if name == "a.parquet":
        path = tmp_path / name
        pq.write_table(pa.Table.from_pylist([{"messages": turns}]), path)
    else:
        path = lines(tmp_path / name, [{"messages": turns}, {"messages": good}])
    found, counts = read(path, ChatTable(members=("*",)))
    rest = [("line 2", "User: Hi")] if name == "a.jsonl" else []
    own = "line 1" if name == "a.jsonl" else "row 1"
    assert found == ([] if expected is None else [(own, expected)]) + rest
    assert counts == ({"no text": 1} if expected is None else {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "from", "value", "tool_calls", "function", "name", "arguments", "text"]
            ),
            parts,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=3))
def test_any_chat_is_a_text_or_unreadable(turns):
    with contextlib.suppress(ChatError, UnicodeDecodeError):
        assert isinstance(chat_text(turns), str)


def test_arguments_of_a_call_may_hold_what_json_lacks():
    call = {"name": "f", "arguments": {"day": datetime.date(2024, 2, 1), "word": b"\xc3\xa9"}}
    assert (
        chat_text([{"role": "assistant", "tool_calls": [call]}]) == 'Assistant: f({"day": "2024-02-01", "word": "é"})'
    )


# Files


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.warc", "a.wet.gz"])
def test_a_file_without_bytes_is_damaged(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    formats = (JsonLines(), ParquetTable(), WebArchive())
    (format_,) = (format_ for format_ in formats if covers(format_, name))
    assert read(tmp_path / name, format_) == ([], {"damaged file": 1})


def test_a_files_compression_is_in_its_own_name_and_not_in_that_of_messages(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}'))
    (unit,), _ = list_units(str(tmp_path / "a.jsonl.gz"), "a.jsonl.gz", (JsonLines(),), unit_bytes=100)
    (document,) = extract(unit, (JsonLines(),), "toys", DropLedger(5), origin="my notes")
    assert document.text == "one"


def test_a_packed_file_of_no_lines_is_whole(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b""))
    assert read(tmp_path / "a.jsonl.gz", JsonLines()) == ([], {})


def long_window(data: bytes) -> bytes:
    """Return the data packed with a window of 256 MiB, as `zstd --long=28` packs a stream."""
    zstd = zstd_module()
    packing = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    return packing.compress(data) + packing.flush()


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.tar.zst"])
@pytest.mark.parametrize("max_window_bytes", [1 << 31, 1 << 28, (1 << 28) - 1])
def test_a_long_window_is_read_up_to_the_limit_and_refused_by_name_beyond_it(tmp_path, name, max_window_bytes):
    data = b'{"text": "one"}\n'
    if name == "a.tar.zst":
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            info = tarfile.TarInfo("a.jsonl")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / name).write_bytes(long_window(data))
    bounds = Limits(max_window_bytes=max_window_bytes)
    units, damage = list_units(str(tmp_path / name), name, (JsonLines(),), unit_bytes=100, limits=bounds)
    ledger = DropLedger(5)
    found = [document.text for unit in units for document in extract(unit, (JsonLines(),), "a", ledger, limits=bounds)]
    assert found == (["one"] if max_window_bytes >= 1 << 28 else [])
    faults = [*filter(None, [damage]), *(sample["detail"] for sample in ledger.samples)]
    assert ["max_window_bytes" in fault for fault in faults] == [True] * (max_window_bytes < 1 << 28)


@pytest.mark.parametrize("size", [0, 1 << 32])
def test_a_window_that_zstandard_does_not_know_is_refused(size):
    with expect_error(ValueError):
        Limits(max_window_bytes=size)


# Guards


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_after_a_death_each_line_and_each_row_group_is_guarded(tmp_path, monkeypatch, name):
    monkeypatch.setattr(records, "_json_row_in_child", deadly_readers.json_row)
    monkeypatch.setattr(parquet_rows, "_parts_of_copy", deadly_readers.parts)
    texts = ["one", "SIGSEGV", "three"]
    if name == "a.jsonl":
        path, format_, row = lines(tmp_path / name, [{"text": text} for text in texts]), JsonLines(), "line"
    else:
        path, format_, row = parquet(tmp_path / name, {"text": texts}, row_group_size=1), ParquetTable(), "row"
    with contextlib.closing(Guarded(limits.DEFAULTS)) as guard:
        found, counts = read(path, format_, limits.DEFAULTS, guard)
    assert found == [(f"{row} 1", "one"), (f"{row} 3", "three")]
    assert counts == {DEADLY: 1}


def test_a_line_that_may_take_more_than_the_memory_is_not_parsed(tmp_path):
    bounds = Limits(max_document_memory=100 * MEMORY_PER_BYTE)
    path = lines(tmp_path / "a.jsonl", [{"text": "one"}, {"text": "x", "no": [[]] * 30}, {"text": "two"}])
    found, counts = read(path, JsonLines(), bounds)
    assert [anchor for anchor, _ in found] == ["line 1", "line 3"]
    assert counts == {"too large": 1}


def test_a_line_above_the_size_is_counted_and_its_neighbours_are_read(tmp_path):
    rows = [{"text": "one"}, {"text": "x" * 3_000_000}, {"text": "two"}]
    for size in (100, 2_999_999):
        found, counts = read(lines(tmp_path / "a.jsonl", rows), JsonLines(), Limits(max_document_bytes=size))
        assert found == [("line 1", "one"), ("line 3", "two")]
        assert counts == {"too large": 1}
    assert len(read(tmp_path / "a.jsonl", JsonLines())[0]) == 3


def test_a_row_above_the_size_in_bytes_is_counted(tmp_path):
    path = parquet(tmp_path / "a.parquet", {"text": ["\u732b" * 40, "\u732b" * 41, "two"]})
    found, counts = read(path, ParquetTable(), Limits(max_document_bytes=120))
    assert [anchor for anchor, _ in found] == ["row 1", "row 3"] and counts == {"too large": 1}


def test_a_line_that_unpacks_a_thousandfold_is_never_held(tmp_path):
    """The file unpacks to 200 MB, in one line."""
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b'{"text": "')
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    tracemalloc.start()
    assert read(tmp_path / "a.jsonl.gz", JsonLines()) == ([], {"too large": 1})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80_000_000, "twice the largest document at most"


CHILD = """
import resource, sys
from tests.runtime.text.extraction.test_records import JsonLines, Limits, Path, ParquetTable, read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
format_ = ParquetTable() if sys.argv[1].endswith("parquet") else JsonLines()
found, counts = read(Path(sys.argv[1]), format_, Limits(max_document_bytes=1 << 30))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(found), counts)
"""


def child(path: Path) -> tuple[int, str]:
    """Return the bytes by which reading a file grows a process, and what it found."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
    size, found = done.stdout.split(" ", 1)
    return int(size) * 1024, found.strip()


def test_a_line_of_60_megabytes_takes_a_few_times_its_size(tmp_path):
    text = "Zeile mit \u00fcber\n" * 3_750_000
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    size, found = child(path)
    assert found == "1 {}"
    assert size < 8 * path.stat().st_size


@pytest.mark.parametrize("store_schema", [False, True])
@pytest.mark.parametrize("format_", [ParquetTable(), ChatTable(messages_field="text")])
def test_a_small_table_that_names_one_value_for_many_rows_is_damaged_from_its_bound_on(
    tmp_path, monkeypatch, format_, store_schema
):
    """With its schema, the column is read as a dictionary, which holds the value once."""
    monkeypatch.setattr(limits, "FREE_BYTES", 1_000_000)
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000, np.int32)), pa.array(["a" * 30_000]))
    if isinstance(format_, ChatTable):
        turns = pa.StructArray.from_arrays([pa.array(["user"] * 1_000), column], ["role", "content"])
        column = pa.ListArray.from_arrays(pa.array(np.arange(1_001, dtype=np.int32)), turns)
    path = parquet(tmp_path / "a.parquet", {"text": column}, compression="zstd", store_schema=store_schema)
    assert path.stat().st_size < 10_000
    found, counts = read(path, format_)
    assert counts == {"damaged file": 1}
    assert 20 < len(found) < 50


@pytest.mark.parametrize("store_schema", [False, True])
def test_ids_that_name_one_value_for_many_rows_are_part_of_the_bound(tmp_path, monkeypatch, store_schema):
    monkeypatch.setattr(limits, "FREE_BYTES", 1_000_000)
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000, np.int32)), pa.array(["a" * 30_000]))
    columns = {"text": [str(number) for number in range(1_000)], "id": ids}
    path = parquet(tmp_path / "a.parquet", columns, compression="zstd", store_schema=store_schema)
    assert path.stat().st_size < 20_000
    found, counts = read(path, ParquetTable(id_field="id"))
    assert counts == {"damaged file": 1}
    assert 20 < len(found) < 100


@pytest.mark.parametrize("field", ["text", "page.text"])
def test_a_page_that_unpacks_beyond_the_ratio_is_never_unpacked(tmp_path, monkeypatch, field):
    monkeypatch.setattr(limits, "FREE_BYTES", 100_000)
    path = parquet(tmp_path / "a.parquet", {field: ["a" * 1_000_000]}, compression="brotli", use_dictionary=False)
    assert read(path, ParquetTable(text_field=field)) == ([], {"damaged file": 1})
    assert len(read(path, ParquetTable(text_field=field), Limits(max_expansion=1_000_000))[0]) == 1


def zigzag(number: int) -> bytes:
    """Return a number as Parquet's headers hold it."""
    left, found = 2 * number, b""
    while left > 127:
        found, left = found + bytes([left & 127 | 128]), left >> 7
    return found + bytes([left])


def test_a_header_that_claims_a_larger_page_takes_no_more_memory_than_allowed(tmp_path):
    """The header of a page of 140 MB says 2 GiB, for which Arrow takes memory before it unpacks anything."""
    column, options = ["ab" * 70_000_000], {"use_dictionary": False, "write_statistics": False}
    path = parquet(tmp_path / "a.parquet", {"text": column}, compression="zstd", data_page_size=1 << 30, **options)
    size, data = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size, path.read_bytes()
    true = next(found for found in map(zigzag, range(size - 100, size)) if found in data[:50])
    path.write_bytes(data.replace(true, zigzag((1 << 31) - 1), 1))
    ledger = DropLedger(5)
    (unit,), _ = list_units(str(path), path.name, (ParquetTable(),), unit_bytes=100)
    assert not list(extract(unit, (ParquetTable(),), "toys", ledger, limits=Limits(max_document_memory=64 << 20)))
    (sample,) = ledger.samples
    assert "limits.max_document_memory" in sample["detail"]
