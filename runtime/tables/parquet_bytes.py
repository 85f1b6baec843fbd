"""Parquet bytes: a table as a file in memory, and back."""

import array
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def parquet_of(table: pa.Table) -> bytes:
    """Equal tables give equal bytes (with one version of pyarrow)."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def table_of(parquet: bytes) -> pa.Table:
    """All of it, read in this thread, from a buffer of Arrow's.

    A program that ends right after a scan is aborted by threads of Arrow that are not done with what is Python's
    (apache/arrow#39862).
    """
    return pq.ParquetFile(pa.BufferReader(parquet)).read(use_threads=False)


def numbers_of(column: "array.array[Any]") -> pa.Array:
    """The same numbers without a copy: nothing can be appended to `column` while the result lives.

    Arrow reads any other sequence number by number, and holds the interpreter up meanwhile.
    """
    return pa.array(np.frombuffer(column, column.typecode))


def append_numbers(column: "array.array[Any]", read: pa.ChunkedArray) -> None:
    """All of `read` behind what `column` has.

    Raises:
        ValueError: a value is missing or does not fit.
    """
    wide = read.cast(pa.from_numpy_dtype(np.dtype(column.typecode)))
    if wide.null_count:
        raise ValueError(f"{wide.null_count} of {len(wide)} numbers are missing")
    for chunk in wide.chunks:
        column.frombytes(memoryview(chunk.to_numpy()).cast("B"))
