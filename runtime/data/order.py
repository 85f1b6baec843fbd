"""Order of the data: from (source, number of the draw) to the row of a cache, without walking there.

A source is a sequence of blocks, read one after another; inside a block rows come in a keyed order. Keys are made of
(seed, identity of the source, epoch, block). So a row depends on nothing but these and the number of the draw: not on
names, on other sources, on how much of a cache is built, or on earlier calls.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.batch import RowLocations
from runtime.data.concatenated import ConcatenatedRows
from runtime.data.packing import Packing
from runtime.data.permutation import permuted
from runtime.data.slots import Bookmark, Slots, row_keys
from runtime.data.token_source import TokenSource
from runtime.data.whole_documents import WholeDocuments

SourceOrder = ConcatenatedRows | WholeDocuments


class DataOrder:
    """The rows of every source of a loader; thread-safe. Two names of one identity are one source."""

    def __init__(
        self,
        caches: Mapping[str, TokenSource],
        identities: Mapping[str, str],
        *,
        seed: int,
        sequence_length: int,
        packing: Packing,
    ) -> None:
        self.seed, self.sequence_length, self.packing = seed, sequence_length, packing
        self.names = tuple(sorted(caches))
        kind = WholeDocuments if packing == "whole_documents" else ConcatenatedRows
        self._sources: list[SourceOrder] = [
            kind(name, caches[name], identities[name], seed=seed, sequence_length=sequence_length)
            for name in self.names
        ]
        self.index_of: dict[str, int] = {}
        """Index of each identity; of its first name where a source has two."""
        for index, name in enumerate(self.names):
            self.index_of.setdefault(identities[name], index)

    @property
    def is_whole(self) -> bool:
        """Whether every cache is finished."""
        return all(each.source.is_whole for each in self._sources)

    def num_sequences(self, identity: str) -> int:
        """Return the sequences of an epoch of a source; wait for the end of a cache that is being built."""
        return self._of(identity).num_sequences()

    def locate(
        self,
        source_index: Int32[np.ndarray, "n"],
        draws: Int64[np.ndarray, "n"],
        bookmarks: Mapping[str, Bookmark],
    ) -> RowLocations:
        """Return where the `draws`-th sequences of their sources lie, each counted from 0 through all epochs.

        Bookmarks of earlier draws change only how long this takes. All sources are permuted in one call: a call for
        each source would take ten times as long.
        """
        slots = Slots(*(np.empty(len(draws), np.int64) for _ in Slots._fields))
        keys = np.empty(len(draws), np.uint64)
        rows_of = {index: source_index == index for index in np.unique(source_index).tolist()}
        for index, rows in rows_of.items():
            source = self._sources[index]
            found = source.slots(draws[rows], bookmarks.get(source.identity))
            for whole, part in zip(slots, found, strict=True):
                whole[rows] = part
            keys[rows] = row_keys(self.seed, source.identity, found)
        places = permuted(slots.indices, sizes=slots.sizes, keys=keys)
        starts = np.empty_like(draws)
        for index, rows in rows_of.items():
            found = Slots(*(part[rows] for part in slots))
            starts[rows] = self._sources[index].starts(found, places[rows])
        return RowLocations(source_index, slots.blocks, places, starts, slots.data_epochs)

    def read(self, rows: RowLocations) -> tuple[Int32[np.ndarray, "rows sequence"], Int32[np.ndarray, "rows sequence"]]:
        """Return tokens and segment ids of rows."""
        tokens = np.empty((len(rows.starts), self.sequence_length), np.int32)
        segment_ids = np.empty_like(tokens)
        for index in np.unique(rows.source_index).tolist():
            where = rows.source_index == index
            tokens[where], segment_ids[where] = self._sources[index].read(
                rows.blocks[where], rows.places[where], rows.starts[where]
            )
        return tokens, segment_ids

    def bookmark(self, identity: str, last: int, known: Bookmark | None = None) -> Bookmark | None:
        """Return what leads to the draw after the `last`-th one; None where nothing needs to be counted.

        `known` is the bookmark of an earlier draw; it changes only how long this takes.
        """
        return self._of(identity).bookmark(last, known)

    def _of(self, identity: str) -> SourceOrder:
        return self._sources[self.index_of[identity]]
