"""Order: which row of its source a source gives at its c-th draw, block after block, found without walking there.

A source is a sequence of blocks. Its first epoch reads them in the order in which they were built, so that it needs
none before it comes to it; the later epochs in a keyed order. Inside a block the rows come in a keyed order of their
own. Keys are made of (seed, identity of the source, epoch, block); a source of one block is one such order.
"""

import collections
import logging
import threading
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from runtime.data.activity import Activity
from runtime.data.best_fit import Packed, packed
from runtime.data.cache import TokenFormat
from runtime.data.packing import Packing
from runtime.data.permutation import key_of, mixed, permuted

BLOCKS_KEPT_PACKED = 2
"""Of each source: the one that is read and the one that comes."""
EPOCHS_KEPT = 2

logger = logging.getLogger(__name__)


class EmptySourceError(ValueError):
    """A source that has not a single row."""


class TokenSource(Protocol):
    """What rows are read from: a `TokenCache`, or a `GrowingCache`."""

    format: TokenFormat
    vocab_size: int
    eos_token_id: int
    is_whole: bool

    @property
    def block_ends(self) -> tuple[int, ...]:
        """For each block that is there, the position behind its last token."""
        ...

    def grow(self, activity: Activity) -> None:
        """Waits for more blocks, or for `is_whole`."""
        ...

    def read_spans(
        self, starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"]
    ) -> Integer[np.ndarray, "sum_of_lengths"]:
        """The tokens of each span, one span after the other; none reaches over the end of its block."""
        ...

    def document_ends(self, block: int) -> Int64[np.ndarray, "num_documents"]:
        """Where each document of a block ends, as positions in the source."""
        ...


class Slots(NamedTuple):
    """Draws of one source, up to the permutation inside their blocks, which is taken for all sources at once."""

    blocks: Int64[np.ndarray, "n"]
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
        self._seed, self._length, self._packing = seed, sequence_length, packing
        self._lock = threading.RLock()
        self._num_rows: list[int] = []
        """Of each block that has been looked at."""
        self._epochs: collections.OrderedDict[int, _Epoch] = collections.OrderedDict()
        self._packed: collections.OrderedDict[int, Packed] = collections.OrderedDict()

    def num_rows(self, activity: Activity) -> int:
        """Rows of an epoch; of a source that is still being built, waits for its end."""
        with self._lock:
            while True:
                self._count_rows(activity)
                if self.source.is_whole:
                    break
                self.source.grow(activity)
            if not sum(self._num_rows):
                raise EmptySourceError(
                    f"{self.name} holds {self.source.block_ends[-1]} tokens in {len(self._num_rows)} blocks, not one "
                    f"row of {self._length}; leave it out of the mixture or join it with another source."
                )
            return sum(self._num_rows)

    def slots(self, draws: Int64[np.ndarray, "n"], activity: Activity) -> Slots:
        """Where the `draws`-th rows lie, counted from 0 through all epochs; waits for blocks that are not built yet."""
        last = int(draws.max())
        with self._lock:
            self._count_rows(activity)
            while not self.source.is_whole and last >= sum(self._num_rows):
                self.source.grow(activity)
                self._count_rows(activity)
            known = sum(self._num_rows)
            total = known if last < known else self.num_rows(activity)
            data_epochs, indices = draws // total, draws % total
            blocks, keys = np.empty_like(draws), np.empty(len(draws), np.uint64)
            for data_epoch in np.unique(data_epochs).tolist():
                where = data_epochs == data_epoch
                epoch = self._epoch(data_epoch)
                turn = np.searchsorted(epoch.ends, indices[where], side="right")
                blocks[where] = epoch.blocks[turn]
                sizes = np.array(self._num_rows, np.int64)[epoch.blocks]
                indices[where] -= (epoch.ends - sizes)[turn]
                keys[where] = key_of("order", self._seed, self.identity, data_epoch)
            # mixed(0) is 0: the first block, and so a source of one, has the key of the epoch itself.
            keys ^= mixed(blocks.astype(np.uint64))
            return Slots(blocks, indices, np.array(self._num_rows, np.int64)[blocks], keys, data_epochs)

    def starts(self, slots: Slots, rows: Int64[np.ndarray, "n"], activity: Activity) -> Int64[np.ndarray, "n"]:
        """Position of the first token of each row; `rows` are the places of `slots` after the permutation."""
        if self._packing == "whole_documents":
            return np.array([self._pieces(*place, activity)[0][0] for place in _pairs(slots.blocks, rows)], np.int64)
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
        if self._packing == "concatenate":
            lengths = np.full(len(starts), self._length, np.int64)
            with activity.during("store read"):
                tokens = self.source.read_spans(starts, lengths).reshape(len(starts), self._length)
            return tokens, segments(tokens, eos)
        pieces = [self._pieces(block, row, activity) for block, row in _pairs(blocks, rows)]
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

    def _count_rows(self, activity: Activity) -> None:
        ends = self.source.block_ends
        for block in range(len(self._num_rows), len(ends)):
            if self._packing == "whole_documents":
                self._num_rows.append(len(self._pack(block, activity).row_ends))
            else:
                self._num_rows.append((ends[block] - (ends[block - 1] if block else 0)) // self._length)

    def _pieces(
        self, block: int, row: int, activity: Activity
    ) -> tuple[Int64[np.ndarray, "pieces"], Int64[np.ndarray, "pieces"]]:
        """Starts and lengths of what a row holds."""
        with self._lock:
            found = self._pack(block, activity)
        pieces = slice(int(found.row_ends[row - 1]) if row else 0, int(found.row_ends[row]))
        return found.starts[pieces], found.lengths[pieces]

    def _pack(self, block: int, activity: Activity) -> Packed:
        if block in self._packed:
            self._packed.move_to_end(block)
            return self._packed[block]
        with activity.during("packing"):
            ends = self.source.block_ends
            first = np.array([ends[block - 1] if block else 0], np.int64)
            found = packed(np.concatenate([first, self.source.document_ends(block)]), self._length)
        if block == len(self._num_rows):  # seen for the first time
            size = max(len(found.row_ends) * self._length, 1)
            logger.info(
                "%s: block %d packed into %d rows of %d tokens: %.2f%% padding, %d documents longer than a row",
                *(self.name, block + 1, len(found.row_ends), self._length, 100 * found.num_padding / size),
                found.num_cut,
            )
        self._packed[block] = found
        while len(self._packed) > BLOCKS_KEPT_PACKED:
            self._packed.popitem(last=False)
        return found


def segments(tokens: np.ndarray, eos_token_id: int) -> Integer[np.ndarray, "batch sequence"]:
    """Number of the document that each token is of, counted from 0 in each row.

    EOS closes every document and occurs nowhere else (the cache's writer refuses it), so the boundaries are
    in the tokens themselves and no offsets need to be read.
    """
    ends = tokens == eos_token_id
    return np.cumsum(ends, axis=-1, dtype=np.int32) - ends.astype(np.int32)


def _pairs(blocks: np.ndarray, rows: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(blocks.tolist(), rows.tolist(), strict=True))
