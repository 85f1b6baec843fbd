"""Losses by source: draws, share, loss and log-normaliser of each source in each update.

There is one row for each source that an update could draw from, in packed columns. The table is also the log of draws:
counts by step and source are all that a batch depends on besides the seed and the sources.
"""

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from runtime.data.mixing.policy import Seen
from runtime.data.mixture import WHOLE
from runtime.tables.column import BlockedTable, Column
from runtime.tables.parquet_bytes import TableError, append_numbers, from_parquet, to_parquet, with_columns


class SourceLosses(NamedTuple):
    """A source in a finished training step."""

    step: int
    """Finished updates, including this one."""
    source: str
    identity: str
    """Digest of the step that made its token cache."""
    share: float
    """The share that its sequences were drawn by."""
    num_sequences: int
    num_targets: int
    """Positions that have a next token to predict."""
    loss_sum: float
    """Cross-entropy over those positions before the update, nats."""
    log_normalizer_sum: float = math.nan
    """Log-normaliser (logsumexp of the logits) over the same positions; NaN for updates of an older version."""


class SourceLossesTable(BlockedTable):
    """Rows in order of steps. Copies share all full blocks of rows."""

    def __init__(self) -> None:
        self._sources: list[tuple[str, str]] = []
        self._number_of: dict[tuple[str, str], int] = {}
        """Index of each name and identity in that list, looked up for each of the thousands of rows of an update."""
        self._columns = {
            "step": Column("q"),
            "source": Column("H"),
            "share": Column("d"),
            "num_sequences": Column("i"),
            "num_targets": Column("q"),
            "loss_sum": Column("d"),
            "log_normalizer_sum": Column("d"),
        }

    def __getitem__(self, index: int) -> SourceLosses:
        values = {name: column[index] for name, column in self._columns.items()}
        source, identity = self._sources[values.pop("source")]
        return SourceLosses(source=source, identity=identity, **values)

    @property
    def last_step(self) -> int:
        return self._columns["step"][-1] if len(self) else 0

    def append(self, rows: Iterable[SourceLosses]) -> None:
        """Add the rows of the update that follows the last one."""
        expected = self.last_step + 1
        for row in rows:
            if row.step != expected:
                raise TableError(f"losses by source: step {row.step} cannot follow step {expected - 1}.")
            pair = row.source, row.identity
            if (number := self._number_of.setdefault(pair, len(self._sources))) == len(self._sources):
                self._sources.append(pair)
            values = row._asdict() | {"source": number}
            for name, column in self._columns.items():
                column.append(values[name])

    def seen(self, step: int) -> dict[str, Seen]:
        """Return the sums by identity of the update that made it `step` finished ones; empty without that update."""
        begin, end = (side(self._columns["step"], step) for side in (bisect.bisect_left, bisect.bisect_right))
        found = (self[index] for index in range(begin, end))
        return {
            row.identity: Seen(row.num_sequences, row.num_targets, row.loss_sum, row.log_normalizer_sum)
            for row in found
        }

    def num_sequences(self, steps: range) -> dict[str, int]:
        """Return the number of sequences that consecutive training steps drew, by identity."""
        begin, end = (bisect.bisect_left(self._columns["step"], step) for step in (steps.start, steps.stop))
        sources, numbers = (self._columns[name].to_numpy()[begin:end] for name in ("source", "num_sequences"))
        sums = np.bincount(sources, weights=numbers, minlength=len(self._sources)).astype(np.int64).tolist()
        total = {identity: 0 for _, identity in self._sources}
        for (_, identity), count in zip(self._sources, sums, strict=True):
            total[identity] += count
        return total

    def copy(self) -> Self:
        table = super().copy()
        table._sources, table._number_of = list(self._sources), dict(self._number_of)
        return table

    def rows_to_parquet(self, rows: slice) -> bytes:
        columns = {name: column.to_numpy(rows) for name, column in self._columns.items()}
        pairs = columns.pop("source")
        arrays = {name: pa.array(numbers) for name, numbers in columns.items()}
        # Without the sources that come first in later rows: a block has the same bytes whenever it is written.
        known = self._sources[: int(pairs.max()) + 1] if len(pairs) else self._sources
        for name, words in zip(("source", "identity"), zip(*known, strict=True), strict=False):
            # Each word once: for a repeated one Arrow writes uninitialised memory into the page.
            index_of = {word: index for index, word in enumerate(dict.fromkeys(words))}
            indices = np.array([index_of[word] for word in words], "H")[pairs]
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(index_of, pa.string()))
        empty = pa.array([], pa.string()).dictionary_encode()
        names = list(SourceLosses._fields)
        return to_parquet(pa.table([arrays.get(name, empty) for name in names], names=names))

    @classmethod
    def from_parquet(cls, *parts: bytes, file: str = "source_losses.parquet") -> "SourceLossesTable":
        """Return the table that `to_parquet` wrote, also in an older or a newer version; errors name `file`."""
        read = with_columns(from_parquet(*parts), SourceLosses._fields, SourceLosses._field_defaults, file=file)
        table = cls()
        # Pairs of words in the order in which they come first, as `append` numbers them.
        sources, identities = (read[name].unify_dictionaries().combine_chunks() for name in ("source", "identity"))
        pairs = sources.indices.to_numpy().astype(np.int64) * len(identities.dictionary) + identities.indices.to_numpy()
        found, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number_of = np.empty_like(order)
        number_of[order] = np.arange(len(order))
        words = sources.dictionary.to_pylist(), identities.dictionary.to_pylist()
        table._sources = [(words[0][pair // len(words[1])], words[1][pair % len(words[1])]) for pair in found[order]]
        table._number_of = {pair: number for number, pair in enumerate(table._sources)}
        table._columns["source"].extend(number_of[inverse].astype("H"))
        for name, column in table._columns.items():
            if name != "source":
                append_numbers(column, read, name, file=file)
        return table


def rows_of_update(
    step: int,
    shares: Mapping[str, int],
    names: Mapping[str, str],
    *,
    num_sequences: Mapping[str, int],
    num_targets: Mapping[str, int],
    loss_sum: Mapping[str, float],
    log_normalizer_sum: Mapping[str, float],
) -> list[SourceLosses]:
    """Return the rows of one update, by name. The mappings are by identity; a missing number is 0."""
    return [
        SourceLosses(
            step=step,
            source=names[identity],
            identity=identity,
            share=share / WHOLE,
            num_sequences=num_sequences.get(identity, 0),
            num_targets=num_targets.get(identity, 0),
            loss_sum=loss_sum.get(identity, 0.0),
            log_normalizer_sum=log_normalizer_sum.get(identity, 0.0),
        )
        for identity, share in sorted(shares.items(), key=lambda item: names[item[0]])
    ]
