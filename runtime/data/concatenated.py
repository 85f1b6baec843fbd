"""Concatenated rows: stretches of one source, cut without regard to documents."""

import threading

import numpy as np
from jaxtyping import Int32, Int64, Integer

from runtime.data.activity import during
from runtime.data.permutation import key_of, mixed
from runtime.data.slots import Bookmark, Slots, block_order
from runtime.data.token_source import LoaderError, TokenSource


class ConcatenatedRows:
    """Rows of one source, block after block; thread-safe.

    A block holds as many rows as its tokens fill. The tokens left over are cut off before the first row and after the
    last one, at another place in each epoch.
    """

    def __init__(self, name: str, source: TokenSource, identity: str, *, seed: int, sequence_length: int) -> None:
        self.name, self.source, self.identity = name, source, identity
        self._seed, self._length = seed, sequence_length
        self._lock = threading.RLock()
        self._block_ends = self._num_rows = np.zeros(0, np.int64)

    def num_sequences(self) -> int:
        """Return the rows of an epoch; wait for the end of a cache that is being built.

        Raises:
            LoaderError: the source does not fill one row.
        """
        with self._lock:
            self._look_at_blocks()
            while not self.source.is_whole:
                self.source.grow()
            self._look_at_blocks()
            total = int(self._num_rows.sum())
        if not total:
            tokens, blocks = int(self._block_ends[-1]), len(self._block_ends)
            raise LoaderError(
                f"caches[{self.name!r}] holds {tokens} tokens in {blocks} blocks, not one row of {self._length}. Leave "
                "it out of the mixture or join it with another source."
            )
        return total

    def slots(self, draws: Int64[np.ndarray, "n"], bookmark: Bookmark | None = None) -> Slots:
        """Return the slots of the `draws`-th rows, counted from 0 through all epochs; wait for unbuilt blocks."""
        last = int(draws.max())
        with self._lock:
            self._look_at_blocks()
            while not self.source.is_whole and last >= self._num_rows.sum():
                self.source.grow()
                self._look_at_blocks()
            known = int(self._num_rows.sum())
            data_epochs, indices = np.divmod(draws, known if last < known else self.num_sequences())
            blocks = np.empty_like(draws)
            for data_epoch in np.unique(data_epochs).tolist():
                order = block_order(self._seed, self.identity, data_epoch, len(self._num_rows))
                ends = np.cumsum(self._num_rows[order])
                where = data_epochs == data_epoch
                turns = np.searchsorted(ends, indices[where], side="right")
                blocks[where] = order[turns]
                indices[where] -= (ends - self._num_rows[order])[turns]
            return Slots(blocks, indices, self._num_rows[blocks], data_epochs)

    def bookmark(self, last: int, known: Bookmark | None = None) -> None:
        """Return None: the slot of any draw is computed without counting."""

    def starts(self, slots: Slots, places: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Return the position of each row's first token; `places` are the rows inside their blocks."""
        ends = self._block_ends
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[slots.blocks]
        spare = ends[slots.blocks] - begins - slots.sizes * self._length
        groups = list(zip(slots.data_epochs.tolist(), slots.blocks.tolist(), spare.tolist(), strict=True))
        shift_of = {group: self._shift(*group) for group in set(groups)}
        return begins + np.array([shift_of[group] for group in groups], np.int64) + places * self._length

    def read(
        self,
        blocks: Int64[np.ndarray, "n"],
        places: Int64[np.ndarray, "n"],
        starts: Int64[np.ndarray, "n"],
    ) -> tuple[Integer[np.ndarray, "n sequence"], Int32[np.ndarray, "n sequence"]]:
        """Return tokens and segment ids of rows."""
        lengths = np.full(len(starts), self._length, np.int64)
        with during("store read"):
            tokens = self.source.read_spans(starts, lengths).reshape(len(starts), self._length)
        return tokens, segments(tokens, self.source.eos_token_id)

    def _shift(self, data_epoch: int, block: int, spare: int) -> int:
        key = key_of("shift", self._seed, self.identity, data_epoch) ^ int(mixed(np.array([block], np.uint64))[0])
        return key % (spare + 1)

    def _look_at_blocks(self) -> None:
        ends = self.source.block_ends
        if len(ends) != len(self._block_ends):
            self._block_ends = np.array(ends, np.int64)
            self._num_rows = np.diff(self._block_ends, prepend=0) // self._length


def segments(tokens: Integer[np.ndarray, "n sequence"], eos_token_id: int) -> Int32[np.ndarray, "n sequence"]:
    """Return the number of each token's document, counted from 0 in each row.

    EOS closes every document and occurs nowhere else (the cache writer raises), so no offsets need to be read.
    """
    ends = tokens == eos_token_id
    return np.cumsum(ends, axis=-1, dtype=np.int32) - ends.astype(np.int32)
