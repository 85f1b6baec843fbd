"""Numbers are read back bit for bit, and numbers that do not fit are refused with file and column."""

import array
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tables.parquet_bytes import TableError, append_numbers, arrow_numbers, from_parquet, to_parquet
from tests.catalogue import expect_error

# Every bit pattern of a double, with all NaNs and both zeros.
doubles = st.integers(0, 2**64 - 1).map(lambda word: struct.unpack("d", struct.pack("Q", word))[0])
VALUES = {
    "d": doubles,
    "q": st.integers(-(2**63), 2**63 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "H": st.integers(0, 2**16 - 1),
}


def column_of(typecode: str, *values: float) -> "array.array[Any]":
    return array.array(typecode, values)


@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_numbers_are_appended_bit_for_bit(data, typecode):
    there, written = (array.array(typecode, data.draw(st.lists(VALUES[typecode], max_size=20))) for _ in range(2))
    parquet = to_parquet(pa.table({"number": arrow_numbers(written)}))
    read = there[:]
    append_numbers(read, from_parquet(parquet), "number", file="a.parquet")
    assert read.tobytes() == there.tobytes() + written.tobytes()
    assert to_parquet(pa.table({"number": arrow_numbers(written[:])})) == parquet


def test_numbers_in_several_chunks_are_all_read():
    pieces = pa.chunked_array([[1, 2], [], [3]], pa.int64())
    read = column_of("q")
    append_numbers(read, pa.table({"step": pieces}), "step", file="a.parquet")
    assert read.tolist() == [1, 2, 3]


def test_numbers_of_another_width_are_read_where_each_fits():
    read = column_of("q")
    append_numbers(read, pa.table({"step": pa.array([7], pa.int32())}), "step", file="a.parquet")
    assert read.tolist() == [7]


def test_numbers_share_their_memory_until_the_array_is_deleted():
    column = column_of("d", 1.0)
    numbers = arrow_numbers(column)
    with pytest.raises(BufferError):
        column.append(2.0)
    del numbers
    column.append(2.0)


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
    assert read.tolist() == [1]


def test_a_table_is_read_back_whole_and_a_torn_one_is_refused():
    table = pa.table({"name": pa.array(["a", None]), "share": pa.array(np.array([0.5, np.inf]))})
    assert from_parquet(to_parquet(table)) == table
    with pytest.raises(pa.ArrowInvalid):
        from_parquet(to_parquet(table)[:-1])
