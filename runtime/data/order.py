"""Order of the data: the row of a cache for each (source, number of the draw), found without reading earlier rows.

A source is a sequence of blocks, read one after another; inside a block rows come in a keyed order. Keys are made of
(seed, identity of the source, epoch, block). A row depends only on its key and the number of the draw. It does not
depend on names, on other sources, on how much of a cache is built, or on earlier calls.
"""

import functools
import threading
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int32, Int64, Integer

from runtime.data.cache import TokenFormat
from runtime.data.flat_array import Elements, Numbers
from runtime.data.permutation import key_of, permuted
from runtime.data.prefetch import during
from runtime.text.hashing import mix


class LoaderError(ValueError):
    """A loader cannot give what its mixture asks for; the message names the source and the fix."""


class TokenSource(Protocol):
    """Token cache that rows are read from: a finished `TokenCache` or a `GrowingCache`."""

    format: TokenFormat
    is_whole: bool
    """Whether all blocks are built."""

    @property
    def block_ends(self) -> tuple[int, ...]:
        """Position after the last token of each block."""
        ...

    def grow(self) -> None:
        """Wait for more blocks, or for `is_whole`."""
        ...

    def read_spans(self, starts: Numbers, lengths: Numbers) -> Elements:
        """Return the tokens of each span, one span after the other; none crosses the end of its block."""
        ...


class RowLocations(NamedTuple):
    """Locations of rows in caches; the rows may belong to several batches."""

    source_index: Int32[np.ndarray, "n"]
    """Index into `Loader.sources`."""
    blocks: Int64[np.ndarray, "n"]
    """Block of the row's source."""
    places: Int64[np.ndarray, "n"]
    """Place of the row in its block."""
    starts: Int64[np.ndarray, "n"]
    """Position of the row's first token in its source's cache."""
    data_epochs: Int64[np.ndarray, "n"]
    """Number of complete passes over the source before the row."""


class DataOrder:
    """The rows of every source of a loader; thread-safe. Two names of one identity are one source."""

    def __init__(
        self, caches: Mapping[str, TokenSource], identities: Mapping[str, str], *, seed: int, sequence_length: int
    ) -> None:
        self.seed, self.sequence_length = seed, sequence_length
        self.names = tuple(sorted(caches))
        self._sources = [_Rows(name, caches[name], identities[name], seed, sequence_length) for name in self.names]
        self.index_of: dict[str, int] = {}
        """Index of each identity; the index of its first name if a source has two."""
        for index, name in enumerate(self.names):
            self.index_of.setdefault(identities[name], index)

    @property
    def is_whole(self) -> bool:
        return all(each.source.is_whole for each in self._sources)

    def num_sequences(self, identity: str) -> int:
        """Return the sequences of an epoch of a source; wait for the end of a cache that is being built."""
        return self._sources[self.index_of[identity]].num_sequences()

    def locate(self, source_index: Int32[np.ndarray, "n"], draws: Int64[np.ndarray, "n"]) -> RowLocations:
        """Return where the `draws`-th sequences of their sources lie, each counted from 0 through all epochs.

        One call permutes all sources: a call for each source would be much slower.
        """
        blocks, indices, sizes, data_epochs, starts = (np.empty(len(draws), np.int64) for _ in range(5))
        keys = np.empty(len(draws), np.uint64)
        for index in np.unique(source_index).tolist():
            rows = source_index == index
            found = self._sources[index].slots(draws[rows])
            for whole, part in zip((blocks, indices, sizes, data_epochs, starts, keys), found, strict=True):
                whole[rows] = part
        places = permuted(indices, sizes=sizes, keys=keys)
        return RowLocations(source_index, blocks, places, starts + places * self.sequence_length, data_epochs)

    def read(self, rows: RowLocations) -> tuple[Int32[np.ndarray, "rows sequence"], Int32[np.ndarray, "rows sequence"]]:
        tokens = np.empty((len(rows.starts), self.sequence_length), np.int32)
        segment_ids = np.empty_like(tokens)
        for index in np.unique(rows.source_index).tolist():
            where, source = rows.source_index == index, self._sources[index].source
            starts = rows.starts[where]
            with during("store read"):
                found = source.read_spans(starts, np.full(len(starts), self.sequence_length, np.int64))
            found = found.reshape(len(starts), self.sequence_length)
            tokens[where], segment_ids[where] = found, segments(found, source.format.eos_token_id)
        return tokens, segment_ids


class _Rows:
    """Rows of one source, block after block, cut without regard to documents; thread-safe.

    A block holds as many rows as its tokens fill. The remaining tokens lie before the first row and after the last
    row; each epoch divides them differently.
    """

    def __init__(self, name: str, source: TokenSource, identity: str, seed: int, sequence_length: int) -> None:
        self.source = source
        self._name, self._identity, self._seed, self._length = name, identity, seed, sequence_length
        self._lock = threading.RLock()
        self._block_ends = self._num_rows = np.zeros(0, np.int64)

    def num_sequences(self) -> int:
        """Return the rows of an epoch, or raise LoaderError for a source that does not fill one row."""
        with self._lock:
            self._look_at_blocks()
            while not self.source.is_whole:
                self.source.grow()
            self._look_at_blocks()
            total = int(self._num_rows.sum())
        if not total:
            tokens, blocks = int(self._block_ends[-1]), len(self._block_ends)
            raise LoaderError(
                f"caches[{self._name!r}] holds {tokens} tokens in {blocks} blocks, not one row of {self._length}. "
                "Leave it out of the mixture or join it with another source."
            )
        return total

    def slots(self, draws: Int64[np.ndarray, "n"]) -> tuple[np.ndarray, ...]:
        """Return for each draw: block, index in the block, its number of rows, epoch, its first row's start, key.

        Wait for unbuilt blocks.
        """
        last = int(draws.max())
        with self._lock:
            self._look_at_blocks()
            while not self.source.is_whole and last >= self._num_rows.sum():
                self.source.grow()
                self._look_at_blocks()
            known = int(self._num_rows.sum())
            data_epochs, indices = np.divmod(draws, known if last < known else self.num_sequences())
            blocks, starts, keys = np.empty_like(draws), np.empty_like(draws), np.empty(len(draws), np.uint64)
            for data_epoch in np.unique(data_epochs).tolist():
                order = _block_order(self._seed, self._identity, data_epoch, len(self._num_rows))
                ends = np.cumsum(self._num_rows[order])
                where = data_epochs == data_epoch
                turns = np.searchsorted(ends, indices[where], side="right")
                blocks[where] = order[turns]
                indices[where] -= (ends - self._num_rows[order])[turns]
                keys[where] = np.uint64(key_of("order", self._seed, self._identity, data_epoch))
                for block in np.unique(order[turns]).tolist():
                    starts[where & (blocks == block)] = self._first_start(data_epoch, block)
            return blocks, indices, self._num_rows[blocks], data_epochs, starts, keys ^ mix(blocks.astype(np.uint64))

    def _first_start(self, data_epoch: int, block: int) -> int:
        begin, end = int(self._block_ends[block - 1]) if block else 0, int(self._block_ends[block])
        key = key_of("shift", self._seed, self._identity, data_epoch) ^ int(mix(np.array([block], np.uint64))[0])
        return begin + key % (end - begin - int(self._num_rows[block]) * self._length + 1)

    def _look_at_blocks(self) -> None:
        ends = self.source.block_ends
        if len(ends) != len(self._block_ends):
            self._block_ends = np.array(ends, np.int64)
            self._num_rows = np.diff(self._block_ends, prepend=0) // self._length


@functools.lru_cache(maxsize=1024)
def _block_order(seed: int, identity: str, data_epoch: int, num_blocks: int) -> Int64[np.ndarray, "blocks"]:
    """Return the blocks of an epoch in reading order: the order of building in the first epoch, a keyed order later.

    The first epoch needs no block before its turn, so training can start while a cache is being built.
    """
    blocks = np.arange(num_blocks)
    if data_epoch:
        key = key_of("blocks", seed, identity, data_epoch)
        blocks = permuted(blocks, sizes=np.full(num_blocks, num_blocks), keys=np.full(num_blocks, key, np.uint64))
    blocks.flags.writeable = False
    return blocks


def segments(tokens: Integer[np.ndarray, "n sequence"], eos_token_id: int) -> Int32[np.ndarray, "n sequence"]:
    """Return the number of each token's document, counted from 0 in each row.

    EOS closes every document and occurs nowhere else (the cache writer raises), so no offsets need to be read.
    """
    ends = tokens == eos_token_id
    return np.cumsum(ends, axis=-1, dtype=np.int32) - ends.astype(np.int32)
