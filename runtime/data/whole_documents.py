"""Whole documents: rows of one source that hold whole documents, packed a portion at a time.

A portion is a bounded number of a block's documents, in pieces from all over the block; it is packed when the first of
its rows is drawn. Which documents make a portion depends on their number alone, and its rows on their lengths. So a row
is the same for every caller, and the first batch packs one portion, not the source. The source is read portion after
portion. A bookmark says how many rows come before a portion; without one, the rows of all earlier portions are counted.
"""

import collections
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Int32, Int64, Integer

from runtime.data.activity import during
from runtime.data.best_fit import PackedRows, pack
from runtime.data.permutation import key_of, permuted
from runtime.data.slots import Bookmark, Slots, block_order
from runtime.data.token_source import LoaderError, TokenSource

PIECE_DOCUMENTS = 1 << 13
"""Consecutive documents of a piece: few, so a portion covers many places; enough to make a read worthwhile."""
PIECES_A_PORTION = 8
"""A portion takes about a tenth of a second to pack, and is packed as tightly as the whole block would be."""
PORTIONS_KEPT = 2
"""The portion that is read and the next one."""

logger = logging.getLogger(__name__)


def num_portions(num_documents: int) -> int:
    """Return the portions of a block; one even for an empty block, so that every block has a turn."""
    return max(1, -(-_num_pieces(num_documents) // PIECES_A_PORTION))


def documents_of(portion: int, num_documents: int) -> list[tuple[int, int]]:
    """Return the first document of each piece of a portion and the one after its last, in the order of the block."""
    pieces, count = _num_pieces(num_documents), num_portions(num_documents)
    places = np.arange(portion * pieces // count, (portion + 1) * pieces // count)
    if count > 1:
        keys = np.full(len(places), key_of("pieces of portions", pieces), np.uint64)
        places = np.sort(permuted(places, sizes=np.full(len(places), pieces), keys=keys))
    return [(first, min(first + PIECE_DOCUMENTS, num_documents)) for first in (places * PIECE_DOCUMENTS).tolist()]


class WholeDocuments:
    """Rows of one source, portion after portion; thread-safe.

    Turns are portions in reading order, over all epochs. `_draws` rows come before turn `_turn`; `_ends` holds, for the
    turns from there on, the rows drawn when each is read.
    """

    def __init__(self, name: str, source: TokenSource, identity: str, *, seed: int, sequence_length: int) -> None:
        self.name, self.source, self.identity = name, source, identity
        self._seed, self._length = seed, sequence_length
        self._order = key_of("turns", seed, identity, sequence_length, PIECE_DOCUMENTS, PIECES_A_PORTION)
        self._lock = threading.RLock()
        self._portions: list[tuple[int, int]] = []
        """Block and number in the block, for the blocks that are built."""
        self._num_blocks = 0
        self._num_rows: dict[int, int] = {}
        """Rows of each portion that was ever packed."""
        self._packed: collections.OrderedDict[int, PackedRows] = collections.OrderedDict()
        self._turn = self._draws = 0
        self._ends: list[int] = []

    def num_sequences(self) -> int:
        """Return the sequences that the tokens of an epoch fill; wait for the end of a cache that is being built.

        Rows are a few more than that, by the padding; counting them would take packing every document.
        """
        while not self.source.is_whole:
            self.source.grow()
        return max(self.source.block_ends[-1] // self._length, 1)

    def slots(self, draws: Int64[np.ndarray, "n"], bookmark: Bookmark | None = None) -> Slots:
        """Return the slots of the `draws`-th rows, counted from 0 through all epochs; wait for unbuilt blocks."""
        first, last = int(draws.min()), int(draws.max())
        with self._lock:
            self._move_to(first, bookmark)
            self._count_up_to(last)
            ends = np.array([self._draws, *self._ends], np.int64)
            turns = np.searchsorted(ends, draws, side="right") - 1
            of_turns = [self._portion_at(self._turn + turn) for turn in range(int(turns.max()) + 1)]
            data_epochs, portions = np.array(of_turns, np.int64)[turns].T
            found = Slots(portions, draws - ends[turns], ends[turns + 1] - ends[turns], data_epochs)
            passed = int(turns.min())
            self._turn, self._draws = self._turn + passed, int(ends[passed])
            del self._ends[:passed]
            return found

    def bookmark(self, last: int, known: Bookmark | None = None) -> Bookmark:
        """Return the place after the `last`-th row; it depends only on the source and on `last`.

        `known` is the bookmark of an earlier row, to count from.
        """
        with self._lock:
            self._move_to(last, known)
            self._count_up_to(last)
            ends = [self._draws, *self._ends]
            turn = int(np.searchsorted(np.array(ends), last, side="right")) - 1
            return {"order": self._order, "turn": self._turn + turn, "draws": ends[turn]}

    def starts(self, slots: Slots, places: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
        """Return the position of each row's first token; `places` are the rows inside their portions."""
        return np.array([starts[0] for starts, _ in self._pieces(slots.blocks, places)], np.int64)

    def read(
        self,
        blocks: Int64[np.ndarray, "n"],
        places: Int64[np.ndarray, "n"],
        starts: Int64[np.ndarray, "n"],
    ) -> tuple[Integer[np.ndarray, "n sequence"], Int32[np.ndarray, "n sequence"]]:
        """Return tokens and segment ids of rows, padded with EOS."""
        pieces = self._pieces(blocks, places)
        with during("store read"):
            flat = self.source.read_spans(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))
        tokens = np.full((len(pieces), self._length), self.source.eos_token_id, flat.dtype)
        # Each padding token is a document of its own: nothing is predicted from it and nothing attends to it.
        segment_ids = np.empty(tokens.shape, np.int32)
        taken = 0
        for row, (_, lengths) in enumerate(pieces):
            filled = int(lengths.sum())
            tokens[row, :filled] = flat[taken : taken + filled]
            taken += filled
            segment_ids[row, :filled] = np.repeat(np.arange(len(lengths)), lengths)
            segment_ids[row, filled:] = len(lengths) + np.arange(self._length - filled)
        return tokens, segment_ids

    def _pieces(
        self, portions: Int64[np.ndarray, "n"], places: Int64[np.ndarray, "n"]
    ) -> list[tuple[Int64[np.ndarray, "pieces"], Int64[np.ndarray, "pieces"]]]:
        """Return starts and lengths of the pieces of each row."""
        found = []
        for portion, row in zip(portions.tolist(), places.tolist(), strict=True):
            with self._lock:
                packed = self._pack(portion)
            pieces = slice(int(packed.row_ends[row - 1]) if row else 0, int(packed.row_ends[row]))
            found.append((packed.starts[pieces], packed.lengths[pieces]))
        return found

    def _move_to(self, first: int, bookmark: Bookmark | None) -> None:
        """Move to the nearest known turn that is not after the turn of the `first`-th row."""
        if bookmark is not None and (bookmark["order"] != self._order or bookmark["draws"] > first):
            bookmark = None
        known = self._ends[-1] if self._ends else self._draws
        if first >= self._draws and (bookmark is None or bookmark["draws"] <= known):
            return
        if bookmark is None:
            logger.info("%s: counting the rows before row %d", self.name, first)
        self._turn, self._draws = (bookmark["turn"], bookmark["draws"]) if bookmark else (0, 0)
        self._ends = []

    def _count_up_to(self, last: int) -> None:
        end = self._ends[-1] if self._ends else self._draws
        while end <= last:
            _, portion = self._portion_at(self._turn + len(self._ends))
            if portion not in self._num_rows:
                self._pack(portion)
            end += self._num_rows[portion]
            self._ends.append(end)

    def _portion_at(self, turn: int) -> tuple[int, int]:
        """Return epoch and portion of a turn."""
        self._look_at_blocks()
        while turn >= len(self._portions) and not self.source.is_whole:
            self.source.grow()
            self._look_at_blocks()
        if turn < len(self._portions):
            return 0, turn
        if not any(self.source.num_documents_of(block) for block in range(self._num_blocks)):
            raise LoaderError(
                f"caches[{self.name!r}] holds no document in {self._num_blocks} blocks. Leave it out of the mixture or "
                "join it with another source."
            )
        data_epoch, place = divmod(turn, len(self._portions))
        return data_epoch, int(block_order(self._seed, self.identity, data_epoch, len(self._portions))[place])

    def _look_at_blocks(self) -> None:
        for block in range(self._num_blocks, len(self.source.block_ends)):
            count = num_portions(self.source.num_documents_of(block))
            self._portions += [(block, number) for number in range(count)]
            self._num_blocks = block + 1

    def _pack(self, portion: int) -> PackedRows:
        if portion in self._packed:
            self._packed.move_to_end(portion)
            return self._packed[portion]
        block, number = self._portions[portion]
        pieces = documents_of(number, self.source.num_documents_of(block)) or [(0, 0)]
        # On a distant store, reads one after another would take several times as long.
        with during("store read"), ThreadPoolExecutor(PIECES_A_PORTION) as pool:
            bounds = list(pool.map(lambda piece: self._bounds(block, *piece), pieces))
        with during("packing"):
            starts, ends = (np.concatenate(part) for part in zip(*bounds, strict=True))
            found = pack(starts, ends, self._length)
        if portion not in self._num_rows:
            self._num_rows[portion] = len(found.row_ends)
            size = max(len(found.row_ends) * self._length, 1)
            logger.info(
                "%s: packed portion %d, of block %d, into %d rows of %d tokens: %.2f%% padding, %d documents longer "
                "than a row",
                *(self.name, portion + 1, block + 1, len(found.row_ends), self._length),
                *(100 * found.num_padding / size, found.num_cut),
            )
        self._packed[portion] = found
        while len(self._packed) > PORTIONS_KEPT:
            self._packed.popitem(last=False)
        return found

    def _bounds(
        self, block: int, first: int, last: int
    ) -> tuple[Int64[np.ndarray, "documents"], Int64[np.ndarray, "documents"]]:
        """Return where the documents `first` to `last` of a block begin and end, as positions in the source."""
        found = self.source.document_ends(block, max(first - 1, 0), last)
        if first == 0:
            begin = self.source.block_ends[block - 1] if block else 0
            found = np.concatenate([np.array([begin], np.int64), found])
        return found[:-1], found[1:]


def _num_pieces(num_documents: int) -> int:
    return -(-num_documents // PIECE_DOCUMENTS)
