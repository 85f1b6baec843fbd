"""Losses by source: what each update drew from each source, by which share, and its loss and log-normaliser there.

One row for each source that an update could draw from, in packed columns. It is also the log of realised draws:
counts by step and source are all that a batch depends on besides the seed and the sources.
"""

import array
import bisect
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from runtime.data.mixing.policy import Seen
from runtime.data.shares import WHOLE
from runtime.tables.parquet_bytes import append_numbers, numbers_of, parquet_of, table_of

COLUMNS = ("step", "source", "identity", "share", "num_sequences", "num_targets", "loss_sum", "log_normalizer_sum")
LATER_COLUMNS = ("log_normalizer_sum",)
"""Of an update that was made before these were recorded, a row has NaN there."""


class SourceLosses(NamedTuple):
    """One source in one finished update."""

    step: int
    """Finished updates, this one included."""
    source: str
    """Its name in the mixture."""
    identity: str
    """Digest of the step that made its token cache."""
    share: float
    """What the sequences of the update were drawn by."""
    num_sequences: int
    num_targets: int
    """Positions that have a next token to predict."""
    loss_sum: float
    """Cross-entropy over those positions before the update, nats; over `num_targets` it is the mean loss."""
    log_normalizer_sum: float
    """Log-normaliser (logsumexp of the logits) over the same positions; NaN where it was not recorded."""


class SourceLossesError(ValueError):
    """A table that is not one of ours, or rows out of order."""


class SourceLossesTable:
    """Rows in order of steps."""

    def __init__(self) -> None:
        self._sources: list[tuple[str, str]] = []
        self._number_of: dict[tuple[str, str], int] = {}
        """Their places in that list: looked up for each row, of which an update may have thousands."""
        self._columns: dict[str, array.array[Any]] = {
            "step": array.array("q"),
            "source": array.array("H"),
            "share": array.array("d"),
            "num_sequences": array.array("i"),
            "num_targets": array.array("q"),
            "loss_sum": array.array("d"),
            "log_normalizer_sum": array.array("d"),
        }

    def __len__(self) -> int:
        return len(self._columns["step"])

    def __getitem__(self, index: int) -> SourceLosses:
        values = {name: column[index] for name, column in self._columns.items()}
        source, identity = self._sources[values.pop("source")]
        return SourceLosses(source=source, identity=identity, **values)

    @property
    def last_step(self) -> int:
        """Finished updates that the table tells of."""
        return self._columns["step"][-1] if len(self) else 0

    def append(self, rows: Iterable[SourceLosses]) -> None:
        """Adds the rows of the update that follows the last one."""
        expected = self.last_step + 1
        for row in rows:
            if row.step != expected:
                raise SourceLossesError(f"losses by source: step {row.step} cannot follow step {expected - 1}.")
            pair = row.source, row.identity
            if (number := self._number_of.setdefault(pair, len(self._sources))) == len(self._sources):
                self._sources.append(pair)
            values = row._asdict() | {"source": number}
            for name, column in self._columns.items():
                column.append(values[name])

    def seen(self, step: int) -> dict[str, Seen]:
        """What the update that made it `step` finished ones showed, by identity; empty if it is not in the table."""
        begin, end = (side(self._columns["step"], step) for side in (bisect.bisect_left, bisect.bisect_right))
        found = (self[index] for index in range(begin, end))
        return {
            row.identity: Seen(row.num_sequences, row.num_targets, row.loss_sum, row.log_normalizer_sum)
            for row in found
        }

    def num_sequences_by_source(self) -> dict[str, int]:
        """Sequences drawn in all, by name."""
        total = {name: 0 for name, _ in self._sources}
        for index, count in zip(self._columns["source"], self._columns["num_sequences"], strict=True):
            total[self._sources[index][0]] += count
        return total

    def copy(self) -> "SourceLossesTable":
        """A table that later rows of this one do not reach."""
        table = SourceLossesTable()
        table._sources, table._number_of = list(self._sources), dict(self._number_of)
        table._columns = {name: column[:] for name, column in self._columns.items()}
        return table

    def to_parquet(self) -> bytes:
        """Equal rows give equal bytes (with one version of pyarrow)."""
        arrays = {name: numbers_of(column) for name, column in self._columns.items() if name != "source"}
        pairs = np.frombuffer(self._columns["source"], "H")
        for name, words in zip(("source", "identity"), zip(*self._sources, strict=True), strict=False):
            # Each word once: of one that stands twice Arrow writes what happened to be in memory into the page.
            index_of = {word: index for index, word in enumerate(dict.fromkeys(words))}
            indices = np.array([index_of[word] for word in words], "H")[pairs]
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(index_of, pa.string()))
        empty = pa.array([], pa.string()).dictionary_encode()
        return parquet_of(pa.table([arrays.get(name, empty) for name in COLUMNS], names=list(COLUMNS)))

    @classmethod
    def from_parquet(cls, data: bytes, *, file: str = "source_losses.parquet") -> "SourceLossesTable":
        """From what `to_parquet` gave, now or before `LATER_COLUMNS`; `file`, where it lies, is named in errors."""
        read = table_of(data)
        if read.column_names == [name for name in COLUMNS if name not in LATER_COLUMNS]:
            for name in LATER_COLUMNS:
                read = read.append_column(name, pa.array(np.full(len(read), math.nan)))
        if read.column_names != list(COLUMNS):
            raise SourceLossesError(f"{file}: columns recorded: {read.column_names}; now: {list(COLUMNS)}.")
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
        table._columns["source"].frombytes(number_of[inverse].astype("H").tobytes())
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
    """The rows of one update, by name; all mappings but `names` are by identity, and what is missing there is 0."""
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
