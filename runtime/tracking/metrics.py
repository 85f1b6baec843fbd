"""Metrics of a run: one row for each finished update; equal Parquet bytes however often the run was interrupted."""

import itertools
import statistics
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from runtime.tables.column import BlockedTable, Column
from runtime.tables.parquet_bytes import TableError, append_numbers, from_parquet, to_parquet, with_columns


class MetricsRow(NamedTuple):
    """A finished training step. Times are in the event log: they differ between equal runs.

    A new field comes last and has a default, its value for updates of an older version.
    """

    step: int
    """Finished updates, including this one."""
    consumed_tokens: int
    """Tokens drawn since the start of the run, including this update."""
    global_batch_size: int
    num_targets: int
    """Positions of the batch that have a next token to predict."""
    learning_rate: float
    loss: float
    """Mean cross-entropy of the batch before the update, nats a token, without the z term."""
    z_loss: float
    grad_norm: float
    update_norm: float
    param_norm: float
    mean_log_normalizer: float
    is_skipped: int = 0
    """1 for an update that the skip rule skipped; its other figures may be anything, NaN included."""


INTEGERS = ("step", "consumed_tokens", "global_batch_size", "num_targets", "is_skipped")


class MetricsTable(BlockedTable):
    """Rows in order of steps, kept as packed columns: eight bytes a figure. Copies share all full blocks of rows."""

    def __init__(self) -> None:
        self._columns = {name: Column("q" if name in INTEGERS else "d") for name in MetricsRow._fields}

    def __getitem__(self, index: int) -> MetricsRow:
        return MetricsRow(*(column[index] for column in self._columns.values()))

    def append(self, row: MetricsRow) -> None:
        """Add the row of the update that follows the last one."""
        if len(self) and row.step != self._columns["step"][-1] + 1:
            raise TableError(f"metrics: step {row.step} cannot follow step {self._columns['step'][-1]}.")
        for name, value in zip(MetricsRow._fields, row, strict=True):
            self._columns[name].append(value)

    def mean_loss_of_last(self, num_steps: int, *, after_step: int) -> float | None:
        """Return the mean loss, correctly rounded, of the last `num_steps` updates after `after_step`.

        Skipped updates do not count. Takes as many as there are; None without one.
        """
        columns = (reversed(self._columns[name]) for name in ("step", "loss", "is_skipped"))
        newest_first = itertools.takewhile(lambda row: row[0] > after_step, zip(*columns, strict=True))
        taken = list(itertools.islice((loss for _, loss, is_skipped in newest_first if not is_skipped), num_steps))
        return statistics.fmean(taken) if taken else None

    def column(self, name: str, begin: int = 0) -> np.ndarray:
        """Return the figures of a column from row `begin` on."""
        return self._columns[name].to_numpy()[begin:]

    @property
    def skipped_steps(self) -> list[int]:
        return list(itertools.compress(self._columns["step"], self._columns["is_skipped"]))

    def rows_to_parquet(self, rows: slice) -> bytes:
        return to_parquet(pa.table({name: pa.array(column.to_numpy(rows)) for name, column in self._columns.items()}))

    @classmethod
    def from_parquet(cls, *parts: bytes, file: str = "metrics.parquet") -> "MetricsTable":
        """Return the table that `to_parquet` wrote, also in an older or a newer version; errors name `file`."""
        read = with_columns(from_parquet(*parts), MetricsRow._fields, MetricsRow._field_defaults, file=file)
        table = cls()
        for name, column in table._columns.items():
            append_numbers(column, read, name, file=file)
        return table
