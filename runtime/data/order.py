"""Order: which row of its source a source gives at its c-th draw, block after block, found without walking there.

A source is a sequence of blocks. Its first epoch reads them in the order in which they were built, so that it needs
none before it comes to it; the later epochs in a keyed order. Inside a block the rows come in a keyed order of their
own. Keys are made of (seed, identity of the source, epoch, block); a source of one block is one such order. Where rows
hold whole documents, the portions of whole_documents.py stand for the blocks, and bookmarks spare the walk.
"""

import collections
import threading
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from runtime.data.activity import Activity
from runtime.data.packing import EmptySourceError, Packing
from runtime.data.permutation import key_of, mixed, permuted
from runtime.data.token_source import TokenSource
from runtime.data.whole_documents import Bookmark, WholeDocuments

EPOCHS_KEPT = 2


class Slots(NamedTuple):
    """Draws of one source, up to the permutation inside their blocks, which is taken for all sources at once."""

    blocks: Int64[np.ndarray, "n"]
    """Or portions, where rows hold whole documents."""
    indices: Int64[np.ndarray, "n"]
    """Place in the block's order."""
    sizes: Int64[np.ndarray, "n"]
    """Rows of the block."""
    keys: UInt64[np.ndarray, "n"]
    data_epochs: Int64[np.ndarray, "n"]


class _Epoch(NamedTuple):
    blocks: Int64[np.ndarray, "blocks"]
    """In the order in which they are read."""
    ends: Int64[np.ndarray, "blocks"]
    """Rows read when each of them is."""


class SourceOrder:
    """The rows of one source and the order they come in; thread-safe."""

    def __init__(
        self, name: str, source: TokenSource, identity: str, *, seed: int, sequence_length: int, packing: Packing
    ) -> None:
        self.name, self.source, self.identity = name, source, identity
        self._seed, self._length = seed, sequence_length
        self._documents: WholeDocuments | None = None
        if packing == "whole_documents":
            self._documents = WholeDocuments(name, source, identity, seed=seed, row_length=sequence_length)
        self._lock = threading.RLock()
        self._num_rows: list[int] = []
        """Of each block that has been looked at."""
        self._epochs: collections.OrderedDict[int, _Epoch] = collections.OrderedDict()

    def num_sequences(self, activity: Activity) -> int:
        """Sequences that the tokens of an epoch fill; of a source that is still being built, waits for its end.

        Of concatenated tokens these are the rows of an epoch. Whole documents make a few more, by what is padding: to
        count them they would all have to be packed.
        """
        if self._documents is None:
            return self._num_concatenated(activity)
        while not self.source.is_whole:
            self.source.grow(activity)
        if self.source.block_ends[-1] < self._length:
            raise self._empty()
        return self.source.block_ends[-1] // self._length

    def slots(self, draws: Int64[np.ndarray, "n"], activity: Activity, bookmark: Bookmark | None = None) -> Slots:
        """Where the `draws`-th rows lie, counted from 0 through all epochs; waits for blocks that are not built yet.

        A bookmark of an earlier draw changes nothing but how long it takes.
        """
        if self._documents is not None:
            found = self._documents.located(draws, activity, bookmark)
            keys = self._keys(found.data_epochs, found.portions)
            return Slots(found.portions, found.indices, found.sizes, keys, found.data_epochs)
        last = int(draws.max())
        with self._lock:
            self._count_rows()
            while not self.source.is_whole and last >= sum(self._num_rows):
                self.source.grow(activity)
                self._count_rows()
            known = sum(self._num_rows)
            total = known if last < known else self._num_concatenated(activity)
            data_epochs, indices = draws // total, draws % total
            blocks = np.empty_like(draws)
            for data_epoch in np.unique(data_epochs).tolist():
                where = data_epochs == data_epoch
                epoch = self._epoch(data_epoch)
                turn = np.searchsorted(epoch.ends, indices[where], side="right")
                blocks[where] = epoch.blocks[turn]
                sizes = np.array(self._num_rows, np.int64)[epoch.blocks]
                indices[where] -= (epoch.ends - sizes)[turn]
            sizes = np.array(self._num_rows, np.int64)[blocks]
            return Slots(blocks, indices, sizes, self._keys(data_epochs, blocks), data_epochs)

    def bookmark(self, last: int, activity: Activity, known: Bookmark | None = None) -> Bookmark | None:
        """What leads to the draw after the `last`-th; None where nothing needs to. `known` is one of an earlier draw,
        and changes nothing but how long it takes."""
        return None if self._documents is None else self._documents.bookmark(last, activity, known)

    def starts(self, slots: Slots, rows: Int64[np.ndarray, "n"], activity: Activity) -> Int64[np.ndarray, "n"]:
        """Position of the first token of each row; `rows` are the places of `slots` after the permutation."""
        if self._documents is not None:
            pieces = [self._documents.pieces(*place, activity) for place in _pairs(slots.blocks, rows)]
            return np.array([starts[0] for starts, _ in pieces], np.int64)
        ends = np.array(self.source.block_ends, np.int64)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[slots.blocks]
        spare = ends[slots.blocks] - begins - slots.sizes * self._length
        places = list(zip(slots.data_epochs.tolist(), slots.blocks.tolist(), spare.tolist(), strict=True))
        shift_of = {place: self._shift(*place) for place in set(places)}
        return begins + np.array([shift_of[place] for place in places], np.int64) + rows * self._length

    def read(
        self,
        blocks: Int64[np.ndarray, "n"],
        rows: Int64[np.ndarray, "n"],
        starts: Int64[np.ndarray, "n"],
        activity: Activity,
    ) -> tuple[Integer[np.ndarray, "n sequence"], Integer[np.ndarray, "n sequence"]]:
        """Tokens and segment ids of rows."""
        eos = self.source.eos_token_id
        if self._documents is None:
            lengths = np.full(len(starts), self._length, np.int64)
            with activity.during("store read"):
                tokens = self.source.read_spans(starts, lengths).reshape(len(starts), self._length)
            return tokens, segments(tokens, eos)
        pieces = [self._documents.pieces(block, row, activity) for block, row in _pairs(blocks, rows)]
        with activity.during("store read"):
            flat = self.source.read_spans(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))
        tokens = np.full((len(rows), self._length), eos, flat.dtype)
        # Each token of padding is a document of its own: nothing is predicted from it and nothing attends to it.
        segment_ids = np.empty((len(rows), self._length), np.int32)
        taken = 0
        for row, (_, lengths) in enumerate(pieces):
            filled = int(lengths.sum())
            tokens[row, :filled] = flat[taken : taken + filled]
            taken += filled
            segment_ids[row, :filled] = np.repeat(np.arange(len(lengths)), lengths)
            segment_ids[row, filled:] = len(lengths) + np.arange(self._length - filled)
        return tokens, segment_ids

    def _epoch(self, data_epoch: int) -> _Epoch:
        count = len(self._num_rows)
        if data_epoch == 0:
            return _Epoch(np.arange(count), np.cumsum(self._num_rows))
        if data_epoch not in self._epochs:
            places = np.arange(count)
            key = key_of("blocks", self._seed, self.identity, data_epoch)
            sizes, keys = np.full(count, count), np.full(count, key, np.uint64)
            blocks = permuted(places, sizes=sizes, keys=keys)
            self._epochs[data_epoch] = _Epoch(blocks, np.cumsum(np.array(self._num_rows, np.int64)[blocks]))
            while len(self._epochs) > EPOCHS_KEPT:
                self._epochs.popitem(last=False)
        return self._epochs[data_epoch]

    def _shift(self, data_epoch: int, block: int, spare: int) -> int:
        """Tokens before the first row: what is left over is cut off in front or behind, another part each epoch."""
        key = key_of("shift", self._seed, self.identity, data_epoch) ^ int(mixed(np.array([block], np.uint64))[0])
        return key % (spare + 1)

    def _num_concatenated(self, activity: Activity) -> int:
        with self._lock:
            while True:
                self._count_rows()
                if self.source.is_whole:
                    break
                self.source.grow(activity)
            if not sum(self._num_rows):
                raise self._empty()
            return sum(self._num_rows)

    def _empty(self) -> EmptySourceError:
        ends = self.source.block_ends
        return EmptySourceError(
            f"{self.name} holds {ends[-1]} tokens in {len(ends)} blocks, not one row of {self._length}; leave it out "
            "of the mixture or join it with another source."
        )

    def _count_rows(self) -> None:
        ends = self.source.block_ends
        for block in range(len(self._num_rows), len(ends)):
            self._num_rows.append((ends[block] - (ends[block - 1] if block else 0)) // self._length)

    def _keys(self, data_epochs: Int64[np.ndarray, "n"], blocks: Int64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
        keys = np.empty(len(blocks), np.uint64)
        for data_epoch in np.unique(data_epochs).tolist():
            keys[data_epochs == data_epoch] = key_of("order", self._seed, self.identity, data_epoch)
        # mixed(0) is 0: the first block, and so a source of one, has the key of the epoch itself.
        return keys ^ mixed(blocks.astype(np.uint64))


def segments(tokens: np.ndarray, eos_token_id: int) -> Integer[np.ndarray, "batch sequence"]:
    """Number of the document that each token is of, counted from 0 in each row.

    EOS closes every document and occurs nowhere else (the cache's writer refuses it), so the boundaries are
    in the tokens themselves and no offsets need to be read.
    """
    ends = tokens == eos_token_id
    return np.cumsum(ends, axis=-1, dtype=np.int32) - ends.astype(np.int32)


def _pairs(blocks: np.ndarray, rows: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(blocks.tolist(), rows.tolist(), strict=True))
