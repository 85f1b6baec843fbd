"""Parquet bytes: a table as a file in memory, and back."""

from collections.abc import Mapping, Sequence

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.tables.column import Column

RESTORE = "The file was changed after it was written: restore it from a copy, or run the step that made it again."


class TableError(ValueError):
    """A table that is not the expected one; the message names its file."""


def to_parquet(table: pa.Table) -> bytes:
    """Return a Parquet file; equal tables give equal bytes (with one version of pyarrow)."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def from_parquet(*parts: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of Parquet files with the same columns, or only some of these that they have.

    They are read in this thread from buffers of Arrow's.
    A program that ends right after a threaded scan of Python's memory is aborted by Arrow's threads
    (apache/arrow#39862).
    """
    files = (pq.ParquetFile(pa.BufferReader(part), page_checksum_verification=True) for part in parts)
    return pa.concat_tables([file.read(columns, use_threads=False) for file in files])


def with_columns(table: pa.Table, names: Sequence[str], defaults: Mapping[str, float], *, file: str) -> pa.Table:
    """Return the columns `names`, in that order.

    A column of an older or a newer version costs no checkpoint: missing columns take their default, further columns are
    left out.

    Raises:
        TableError: a column without a default is missing.
    """
    missing = [name for name in names if name not in table.column_names]
    if lost := [name for name in missing if name not in defaults]:
        columns = f"has no column {', '.join(lost)}; its columns are {table.column_names}"
        raise TableError(f"{file}: {columns}. Use a table that a run wrote.")
    for name in missing:
        table = table.append_column(name, pa.array(np.full(len(table), defaults[name])))
    return table.select(names)


def read_parts(path: str) -> list[bytes]:
    """Return the content of the files of a table (`part_files`)."""
    with fsspec.open_files(part_files(path), "rb") as parts:
        return [part.read() for part in parts]


def part_files(path: str) -> list[str]:
    """Return the URLs of the files of a table, in order of its rows: a folder of Parquet files, or one file."""
    filesystem, inner = fsspec.core.url_to_fs(path, use_listings_cache=False)
    if not filesystem.isdir(inner):
        return [path]
    return [f"{path}/{name}" for name in sorted(each.rpartition("/")[2] for each in filesystem.ls(inner, detail=False))]


def append_numbers(column: Column, table: pa.Table, name: str, *, file: str) -> None:
    """Append the numbers of the table's column `name` to `column`.

    Raises:
        TableError: the column has no numbers, or one is missing or does not fit.
    """
    read, wanted = table[name], pa.from_numpy_dtype(np.dtype(column.typecode))
    if not (pa.types.is_integer(read.type) or pa.types.is_floating(read.type)):
        raise TableError(f"{file}: column {name} is of {read.type}, not of numbers. {RESTORE}")
    if read.null_count:
        raise TableError(f"{file}: {read.null_count} of {len(read)} numbers of column {name} are missing. {RESTORE}")
    try:
        fitting = read.cast(wanted)
    except pa.ArrowInvalid as error:
        raise TableError(f"{file}: column {name} does not fit into {wanted}: {error}. {RESTORE}") from error
    for chunk in fitting.chunks:
        column.extend(chunk.to_numpy())
