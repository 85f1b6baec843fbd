"""Parquet bytes: a table as a file in memory, and back."""

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
