"""Readings: the files of other steps that the report shows, as its plain values."""

import json
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.report.contents import Curve, Sample, SourceCurve

_EXCERPT_CHARACTERS = 600


class ReadingError(ValueError):
    """A file that the report reads is not what it should be."""


def read_columns(path: str, columns: Sequence[str], *, optional: Sequence[str] = ()) -> pa.Table:
    """Return columns of a phase's Parquet file, `optional` ones where it has them; sources as dictionary indices.

    Raises:
        ReadingError: a column is missing.
    """
    with fsspec.open(path, "rb") as file:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        there = parquet.schema_arrow.names
        missing = [name for name in columns if name not in there]
        if missing:
            raise ReadingError(
                f"{path}: has no column {', '.join(missing)}; it is not the log of a phase, or of another version. "
                "Train the phase again."
            )
        if "source" in there:
            parquet = pq.ParquetFile(
                file, metadata=parquet.metadata, read_dictionary=["source"], page_checksum_verification=True
            )
        # In this thread: see `runtime.tables.parquet_bytes`.
        return parquet.read([*columns, *(name for name in optional if name in there)], use_threads=False)


def read_curve(path: str) -> Curve:
    """Return rows of a `metrics.parquet`, without those of skipped training steps.

    Raises:
        ReadingError: a column is missing.
        ValueError: a value is not finite, or rows are out of order.
    """
    columns = ("step", "consumed_tokens", "loss", "learning_rate", "global_batch_size")
    table = read_columns(path, columns, optional=("is_skipped",))
    if "is_skipped" in table.column_names:  # tables from before there was a skip rule have none
        table = table.filter(pc.equal(table.column("is_skipped"), 0))
    values = {name: table.column(name).to_numpy() for name in columns}
    return Curve(**{name: np.asarray(value) for name, value in values.items()})


class Progress(NamedTuple):
    """Progress of a phase, one row a training step; skipped steps have rows, since they consumed tokens."""

    step: np.ndarray
    consumed_tokens: np.ndarray
    global_batch_size: np.ndarray

    @property
    def sequence_length(self) -> int:
        """Tokens a sequence."""
        if self.step[0] == 1:
            return int(self.consumed_tokens[0]) // int(self.global_batch_size[0])
        if len(self.step) == 1:
            raise ReadingError(
                f"the log of a phase has one row, of step {self.step[0]}; rows go back to the start of the run. Train "
                "the phase again."
            )
        return int(self.consumed_tokens[1] - self.consumed_tokens[0]) // int(self.global_batch_size[1])

    def sequence_length_at(self, step: int) -> int:
        """Return the sequence length of the training step that finished as number `step`."""
        (row,) = np.flatnonzero(self.step == step)
        if row == 0:
            return self.sequence_length
        return int(self.consumed_tokens[row] - self.consumed_tokens[row - 1]) // int(self.global_batch_size[row])

    def tokens_at(self, step: int) -> int:
        """Return the tokens consumed after `step` training steps, or before the first row if that comes later."""
        rows = np.flatnonzero(self.step == step)
        if rows.size:
            return int(self.consumed_tokens[rows[0]])
        return int(self.consumed_tokens[0]) - self.sequence_length * int(self.global_batch_size[0])


def read_progress(path: str) -> Progress:
    """Return the progress recorded in a `metrics.parquet`.

    Raises:
        ReadingError: a column is missing, or there is no row.
    """
    table = read_columns(path, Progress._fields)
    if not table.num_rows:
        raise ReadingError(f"{path}: has no row; a phase has at least one training step. Train the phase again.")
    return Progress(*(table.column(name).to_numpy() for name in Progress._fields))


def read_num_targets(path: str, *, after_tokens: int) -> int:
    """Return the number of predicted positions in a `metrics.parquet` after so many tokens, skipped steps included.

    Raises:
        ReadingError: a column is missing.
    """
    table = read_columns(path, ("consumed_tokens", "num_targets"))
    own = table.filter(pc.greater(table.column("consumed_tokens"), after_tokens))
    return int(pc.sum(own.column("num_targets")).as_py() or 0)


def read_source_curves(path: str) -> tuple[SourceCurve, ...]:
    """Return the loss of each source from a `source_losses.parquet`, which goes back to the start of its run.

    A training step gives no row for a source without a predicted position.

    Raises:
        ReadingError: a column is missing.
    """
    table = read_columns(path, ("step", "source", "num_targets", "loss_sum"))
    index, names = sources_of(table)
    step, targets, total = (table.column(name).to_numpy() for name in ("step", "num_targets", "loss_sum"))
    seen = (targets > 0) & np.isfinite(total)
    return tuple(
        SourceCurve(name, step[rows], total[rows] / targets[rows])
        for name, number in sorted((name, number) for number, name in enumerate(names))
        if (rows := seen & (index == number)).any()
    )


def sources_of(table: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Return the source of each row, and the names that these are indices into, each once."""
    column = table.column("source")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def read_samples(path: str, samples_per_reason: int) -> tuple[Sample, ...]:
    """Return the first few samples of each reason, in the order of the file; excerpts are cut at 600 characters.

    Raises:
        ReadingError: a line is not a sample.
    """
    by_reason: dict[str, list[Sample]] = {}
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                sample = Sample(row["reason"], row["id"], row["detail"], shortened(row["excerpt"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ReadingError(
                    f"{path}, line {number}: not a sample of a dropped document ({error!r}); run that step again."
                ) from error
            by_reason.setdefault(sample.reason, []).append(sample)
    return tuple(sample for samples in by_reason.values() for sample in islice(samples, samples_per_reason))


def shortened(excerpt: str) -> str:
    """Return the beginning of an excerpt, marked where it is cut."""
    return excerpt if len(excerpt) <= _EXCERPT_CHARACTERS else excerpt[:_EXCERPT_CHARACTERS] + " […]"
