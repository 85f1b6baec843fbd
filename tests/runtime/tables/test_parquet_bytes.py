"""Numbers are read back bit for bit, and numbers that do not fit are refused with file and column."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tables.column import Column
from runtime.tables.parquet_bytes import TableError, append_numbers, from_parquet, to_parquet
from tests.catalogue import expect_error

# Every bit pattern of a double, with all NaNs and both zeros.
doubles = st.integers(0, 2**64 - 1).map(lambda word: struct.unpack("d", struct.pack("Q", word))[0])
VALUES = {
    "d": doubles,
    "q": st.integers(-(2**63), 2**63 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "H": st.integers(0, 2**16 - 1),
}


def column_of(typecode: str, *values: float) -> Column:
    column = Column(typecode)
    for value in values:
        column.append(value)
    return column


@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_numbers_are_appended_bit_for_bit(data, typecode):
    there, written = (column_of(typecode, *data.draw(st.lists(VALUES[typecode], max_size=20))) for _ in range(2))
    parquet = to_parquet(pa.table({"number": pa.array(written.to_numpy())}))
    read = there.copy()
    append_numbers(read, from_parquet(parquet), "number", file="a.parquet")
    assert read.to_numpy().tobytes() == there.to_numpy().tobytes() + written.to_numpy().tobytes()


def test_numbers_in_several_chunks_are_all_read():
    pieces = pa.chunked_array([[1, 2], [], [3]], pa.int64())
    read = column_of("q")
    append_numbers(read, pa.table({"step": pieces}), "step", file="a.parquet")
    assert list(read) == [1, 2, 3]


def test_numbers_of_another_width_are_read_where_each_fits():
    read = column_of("q")
    append_numbers(read, pa.table({"step": pa.array([7], pa.int32())}), "step", file="a.parquet")
    assert list(read) == [7]


def test_files_are_read_one_after_the_other_whatever_words_each_has():
    parts = [
        pa.table({"step": pa.array(steps), "source": pa.array(words).dictionary_encode()})
        for steps, words in (([1, 2], ["web", "code"]), ([3], ["math"]), ([4, 5], ["code", "web"]))
    ]
    whole = from_parquet(*[to_parquet(part) for part in parts])
    assert whole["step"].to_pylist() == [1, 2, 3, 4, 5]
    assert whole["source"].to_pylist() == ["web", "code", "math", "code", "web"]


@pytest.mark.parametrize(
    ("typecode", "values"),
    [
        ("d", pa.array([1.0, None])),
        ("q", pa.array([1.5])),
        ("H", pa.array([2**16])),
        ("d", pa.array([2**53 + 1])),
        ("q", pa.array(["1"])),
        ("q", pa.array([True])),
    ],
    ids=["null", "fraction", "too large", "not exact", "string", "boolean"],
)
def test_numbers_that_do_not_fit_are_refused_with_file_and_column(typecode, values):
    read = column_of(typecode, 1)
    with expect_error(TableError):
        append_numbers(read, pa.table({"loss": values}), "loss", file="runs/a.parquet")
    assert list(read) == [1]


def test_a_table_is_read_back_whole_and_a_torn_one_is_refused():
    table = pa.table({"name": pa.array(["a", None]), "share": pa.array(np.array([0.5, np.inf]))})
    assert from_parquet(to_parquet(table)) == table
    with pytest.raises(pa.ArrowInvalid):
        from_parquet(to_parquet(table)[:-1])
