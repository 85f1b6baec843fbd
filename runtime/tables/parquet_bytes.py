"""Parquet bytes: a table as a file in memory, and back."""

import array
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESTORE = "no run wrote it like that: restore the file from a copy, or run the step that made it again."


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


def append_numbers(column: "array.array[Any]", table: pa.Table, name: str, *, file: str) -> None:
    """All numbers of the table's column `name` behind what `column` has; `file` is where the table was read.

    Raises:
        ValueError: the column holds no numbers, or one is missing or does not fit.
    """
    read, wanted = table[name], pa.from_numpy_dtype(np.dtype(column.typecode))
    if not (pa.types.is_integer(read.type) or pa.types.is_floating(read.type)):
        raise ValueError(f"{file}: column {name} is of {read.type}, and not of numbers; {RESTORE}")
    if read.null_count:
        raise ValueError(f"{file}: {read.null_count} of {len(read)} numbers of column {name} are missing; {RESTORE}")
    try:
        fitting = read.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file}: column {name} does not fit into {wanted}: {error}; {RESTORE}") from error
    for chunk in fitting.chunks:
        column.frombytes(chunk.to_numpy().view(np.uint8))
