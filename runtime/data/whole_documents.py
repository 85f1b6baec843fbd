"""Whole documents: the rows of one source when rows hold whole documents, packed a portion at a time.

A portion is a bounded lot of a block's documents, in pieces from all over the block; it is packed by itself, when the
first of its rows is drawn. Which documents make a portion depends on their number alone, and its rows on their lengths:
so a row is the same whoever asks for it, and the first batch touches one portion and not the source. The source is read
portion after portion. Who comes from elsewhere finds the place by a bookmark in the position of the data, which says
how many rows were drawn before a portion; without one, the rows of all portions before are counted.
"""

import collections
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from runtime.data.activity import Activity
from runtime.data.best_fit import Packed, packed
from runtime.data.packing import EmptySourceError
from runtime.data.permutation import key_of, permuted
from runtime.data.token_source import TokenSource

PIECE_DOCUMENTS = 1 << 13
"""Consecutive ones: few enough that a portion has them from many places, enough that a read is worth its while."""
PIECES_A_PORTION = 8
"""So that a portion takes about a tenth of a second to pack, and is as full as the whole block would be."""
PORTIONS_KEPT = 2
"""The one that is read and the one that comes."""
EPOCHS_KEPT = 2

Bookmark = dict[str, int]
"""`order`: of what; `turn`: portions read before that of the last row drawn, over all epochs; `draws`: their rows."""

logger = logging.getLogger(__name__)


class Located(NamedTuple):
    """Draws, as rows of portions."""

    portions: Int64[np.ndarray, "n"]
    indices: Int64[np.ndarray, "n"]
    """Place in the portion's order."""
    sizes: Int64[np.ndarray, "n"]
    """Rows of the portion."""
    data_epochs: Int64[np.ndarray, "n"]


class _Portion(NamedTuple):
    block: int
    number: int
    """Of those of its block."""


def num_portions(num_documents: int) -> int:
    """Of a block of so many documents; one even where there are none, so that every block has its turn."""
    return max(1, -(-_num_pieces(num_documents) // PIECES_A_PORTION))


def documents_of(portion: int, num_documents: int) -> list[tuple[int, int]]:
    """First document of each piece of a portion and the one behind its last, in the order of the block."""
    pieces, count = _num_pieces(num_documents), num_portions(num_documents)
    places = np.arange(portion * pieces // count, (portion + 1) * pieces // count)
    if count > 1:
        keys = np.full(len(places), key_of("pieces of portions", pieces), np.uint64)
        places = np.sort(permuted(places, sizes=np.full(len(places), pieces), keys=keys))
    return [(first, min(first + PIECE_DOCUMENTS, num_documents)) for first in (places * PIECE_DOCUMENTS).tolist()]


class WholeDocuments:
    """Rows of one source by the order in which they are drawn, up to the order inside a portion; thread-safe."""

    def __init__(self, name: str, source: TokenSource, identity: str, *, seed: int, row_length: int) -> None:
        self.name, self.source, self.identity = name, source, identity
        self._seed, self._row_length = seed, row_length
        self._order = key_of("turns", seed, identity, row_length, PIECE_DOCUMENTS, PIECES_A_PORTION)
        self._lock = threading.RLock()
        self._portions: list[_Portion] = []
        """Of the blocks that are there, in the order in which the first epoch reads them."""
        self._num_blocks = 0
        self._num_rows: dict[int, int] = {}
        """Of each portion that was ever packed."""
        self._packed: collections.OrderedDict[int, Packed] = collections.OrderedDict()
        self._orders: collections.OrderedDict[int, list[int]] = collections.OrderedDict()
        # Turns are portions in the order in which they are read, all epochs. Of those from `_turn` on, which come
        # after `_draws` rows, `_ends` says how many rows are drawn when each is read.
        self._turn = self._draws = 0
        self._ends: list[int] = []

    def located(self, draws: Int64[np.ndarray, "n"], activity: Activity, bookmark: Bookmark | None) -> Located:
        """Where the `draws`-th rows lie, counted from 0 through all epochs; waits for blocks that are not built yet."""
        first, last = int(draws.min()), int(draws.max())
        with self._lock:
            self._open_at(first, bookmark)
            self._read_on(last, activity)
            ends = np.array([self._draws, *self._ends], np.int64)
            turns = np.searchsorted(ends, draws, side="right") - 1
            epochs_and_portions = np.array(
                [self._portion_at(self._turn + turn, activity) for turn in range(int(turns.max()) + 1)], np.int64
            )[turns]
            found = Located(
                portions=epochs_and_portions[:, 1],
                indices=draws - ends[turns],
                sizes=(ends[turns + 1] - ends[turns]),
                data_epochs=epochs_and_portions[:, 0],
            )
            passed = int(turns.min())
            self._turn, self._draws = self._turn + passed, int(ends[passed])
            del self._ends[:passed]
            return found

    def bookmark(self, last: int, activity: Activity, known: Bookmark | None = None) -> Bookmark:
        """Where to go on after the `last`-th row; depends on nothing but the source and on which row that is.

        `known` is a bookmark of an earlier row, to count from.
        """
        with self._lock:
            self._open_at(last, known)
            self._read_on(last, activity)
            ends = [self._draws, *self._ends]
            turn = int(np.searchsorted(np.array(ends), last, side="right")) - 1
            return {"order": self._order, "turn": self._turn + turn, "draws": ends[turn]}

    def pieces(
        self, portion: int, row: int, activity: Activity
    ) -> tuple[Int64[np.ndarray, "pieces"], Int64[np.ndarray, "pieces"]]:
        """Starts and lengths of what a row of a portion holds."""
        with self._lock:
            found = self._pack(portion, activity)
        pieces = slice(int(found.row_ends[row - 1]) if row else 0, int(found.row_ends[row]))
        return found.starts[pieces], found.lengths[pieces]

    def _open_at(self, first: int, bookmark: Bookmark | None) -> None:
        """Moves to a turn before that of the `first`-th row, to the nearest one that is known."""
        if bookmark is not None and (bookmark["order"] != self._order or bookmark["draws"] > first):
            bookmark = None
        known = self._ends[-1] if self._ends else self._draws
        if first >= self._draws and (bookmark is None or bookmark["draws"] <= known):
            return
        if bookmark is None:
            logger.info("%s: counting the rows that come before row %d", self.name, first)
        self._turn, self._draws = (bookmark["turn"], bookmark["draws"]) if bookmark else (0, 0)
        self._ends = []

    def _read_on(self, last: int, activity: Activity) -> None:
        """Counts turn after turn up to that of the `last`-th row."""
        end = self._ends[-1] if self._ends else self._draws
        while end <= last:
            _, portion = self._portion_at(self._turn + len(self._ends), activity)
            if portion not in self._num_rows:
                self._pack(portion, activity)
            end += self._num_rows[portion]
            self._ends.append(end)

    def _portion_at(self, turn: int, activity: Activity) -> tuple[int, int]:
        """Epoch and portion of a turn: the first epoch as they come, block after block, later ones in a keyed order."""
        self._look_at_blocks()
        while turn >= len(self._portions) and not self.source.is_whole:
            self.source.grow(activity)
            self._look_at_blocks()
        if turn < len(self._portions):
            return 0, turn
        if not any(self.source.num_documents_of(block) for block in range(self._num_blocks)):
            raise EmptySourceError(
                f"{self.name} holds no document in {self._num_blocks} blocks; leave it out of the mixture or join it "
                "with another source."
            )
        data_epoch, place = divmod(turn, len(self._portions))
        return data_epoch, self._order_of(data_epoch)[place]

    def _look_at_blocks(self) -> None:
        for block in range(self._num_blocks, len(self.source.block_ends)):
            count = num_portions(self.source.num_documents_of(block))
            self._portions += [_Portion(block, number) for number in range(count)]
            self._num_blocks = block + 1

    def _order_of(self, data_epoch: int) -> list[int]:
        if data_epoch not in self._orders:
            count = len(self._portions)
            keys = np.full(count, key_of("blocks", self._seed, self.identity, data_epoch), np.uint64)
            self._orders[data_epoch] = permuted(np.arange(count), sizes=np.full(count, count), keys=keys).tolist()
            while len(self._orders) > EPOCHS_KEPT:
                self._orders.popitem(last=False)
        return self._orders[data_epoch]

    def _pack(self, portion: int, activity: Activity) -> Packed:
        if portion in self._packed:
            self._packed.move_to_end(portion)
            return self._packed[portion]
        block, number = self._portions[portion]
        # One after another, the pieces would take a distant store as many times as long.
        with activity.during("store read"), ThreadPoolExecutor(PIECES_A_PORTION) as pool:
            bounds = list(pool.map(lambda piece: self._bounds(block, *piece), self._pieces_of(block, number)))
        with activity.during("packing"):
            starts, ends = (np.concatenate(part) for part in zip(*bounds, strict=True))
            found = packed(starts, ends, self._row_length)
        if portion not in self._num_rows:  # seen for the first time
            self._num_rows[portion] = len(found.row_ends)
            size = max(len(found.row_ends) * self._row_length, 1)
            logger.info(
                "%s: portion %d, of block %d, packed into %d rows of %d tokens: %.2f%% padding, %d documents longer "
                "than a row",
                *(self.name, portion + 1, block + 1, len(found.row_ends), self._row_length),
                *(100 * found.num_padding / size, found.num_cut),
            )
        self._packed[portion] = found
        while len(self._packed) > PORTIONS_KEPT:
            self._packed.popitem(last=False)
        return found

    def _pieces_of(self, block: int, number: int) -> list[tuple[int, int]]:
        return documents_of(number, self.source.num_documents_of(block)) or [(0, 0)]

    def _bounds(
        self, block: int, first: int, last: int
    ) -> tuple[Int64[np.ndarray, "documents"], Int64[np.ndarray, "documents"]]:
        """Where the documents `first` to `last` of a block begin and end, as positions in the source."""
        found = self.source.document_ends(block, max(first - 1, 0), last)
        if first == 0:
            begin = self.source.block_ends[block - 1] if block else 0
            found = np.concatenate([np.array([begin], np.int64), found])
        return found[:-1], found[1:]


def _num_pieces(num_documents: int) -> int:
    return -(-num_documents // PIECE_DOCUMENTS)
