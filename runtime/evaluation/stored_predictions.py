"""Stored predictions of single tokens: a file for each validation of a phase and for each evaluation, without JAX."""

from collections.abc import Sequence
from pathlib import Path

import fsspec
import pyarrow as pa

from runtime.tables.parquet_bytes import RESTORE, TableError, from_parquet, to_parquet, with_columns

PREDICTIONS = "predictions"
"""Name of a folder of predictions, one file for each step, or of a file without its ending."""
PREDICTIONS_FILE = f"{PREDICTIONS}.parquet"
"""Name of the file in the output of an evaluation."""
COLUMNS = (
    *("step", "consumed_tokens", "weights", "domain", "window", "position", "token", "log_prob", "rank", "entropy"),
    *("likely", "likely_log_prob"),
)


def file_of_step(folder: str, step: int) -> str:
    """Return the path of the predictions after `step` finished steps; paths sort as steps do."""
    return f"{folder}/step-{step:012d}.parquet"


def write_predictions(url: str, table: pa.Table) -> None:
    """Write a table as Parquet, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    data = to_parquet(table)
    if "://" in url:  # an object is there once it is complete
        with fsspec.open(url, "wb") as file:
            file.write(data)
        return
    Path(url).parent.mkdir(parents=True, exist_ok=True)
    partial = Path(f"{url}.partial")
    partial.write_bytes(data)
    partial.replace(url)


def read_predictions(url: str, columns: Sequence[str] = COLUMNS) -> pa.Table:
    """Return these columns of one file.

    Raises:
        OSError: the file cannot be read.
        TableError: the file is damaged, or lacks a column.
    """
    with fsspec.open(url, "rb") as file:
        data = file.read()
    try:
        table = from_parquet(data, columns=columns)
    except (pa.ArrowException, OSError) as error:  # Arrow reports a wrong checksum as an OSError
        raise TableError(f"{url} is damaged ({str(error).rstrip('.')}). {RESTORE}") from error
    return with_columns(table, columns, {}, file=url)
