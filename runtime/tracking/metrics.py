"""Metrics of a run: one row a finished update, the same Parquet bytes however often the run was interrupted."""

import array
import itertools
import statistics
from typing import Any, NamedTuple

import pyarrow as pa

from runtime.tables.parquet_bytes import append_numbers, numbers_of, parquet_of, table_of


class MetricsRow(NamedTuple):
    """One finished update. Times are elsewhere (events): they would differ from run to run."""

    step: int
    """Finished updates, this one included."""
    consumed_tokens: int
    """Tokens drawn since the start of the run, this update's included."""
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
    """1 where the skip rule left the update out; the figures above may then be anything, and not a number."""


INTEGERS = ("step", "consumed_tokens", "global_batch_size", "num_targets", "is_skipped")


class MetricsError(ValueError):
    """A table that is not one of ours, or rows out of order."""


class MetricsTable:
    """Rows in order of steps, held as packed columns: eight bytes a figure."""

    def __init__(self) -> None:
        self._columns: dict[str, array.array[Any]] = {
            name: array.array("q" if name in INTEGERS else "d") for name in MetricsRow._fields
        }

    def __len__(self) -> int:
        return len(self._columns["step"])

    def __getitem__(self, index: int) -> MetricsRow:
        return MetricsRow(*(column[index] for column in self._columns.values()))

    def append(self, row: MetricsRow) -> None:
        """Adds the row of the update that follows the last one."""
        if len(self) and row.step != self._columns["step"][-1] + 1:
            raise MetricsError(f"metrics: step {row.step} cannot follow step {self._columns['step'][-1]}.")
        for name, value in zip(MetricsRow._fields, row, strict=True):
            self._columns[name].append(value)

    def copy(self) -> "MetricsTable":
        """A table that later rows of this one do not reach."""
        table = MetricsTable()
        table._columns = {name: column[:] for name, column in self._columns.items()}
        return table

    def mean_loss_of_last(self, num_steps: int) -> float | None:
        """Mean loss over the last updates that were taken, as many as there are; correctly rounded, so independent of
        their order. None where none was taken."""
        newest_first = zip(reversed(self._columns["loss"]), reversed(self._columns["is_skipped"]), strict=True)
        taken = list(itertools.islice((loss for loss, is_skipped in newest_first if not is_skipped), num_steps))
        return statistics.fmean(taken) if taken else None

    @property
    def skipped_steps(self) -> list[int]:
        """Steps whose update was left out."""
        return list(itertools.compress(self._columns["step"], self._columns["is_skipped"]))

    def to_parquet(self) -> bytes:
        """Equal rows give equal bytes (with one version of pyarrow)."""
        return parquet_of(pa.table({name: numbers_of(column) for name, column in self._columns.items()}))

    @classmethod
    def from_parquet(cls, data: bytes, *, file: str = "metrics.parquet") -> "MetricsTable":
        """From what `to_parquet` gave; `file`, where it lies, is named in errors."""
        read = table_of(data)
        if read.column_names != list(MetricsRow._fields):
            raise MetricsError(f"{file}: columns recorded: {read.column_names}; now: {list(MetricsRow._fields)}.")
        table = cls()
        for name, column in table._columns.items():
            append_numbers(column, read, name, file=file)
        return table
