"""A batch of texts as one byte array, with its words, lines and n-grams as NumPy arrays.

Filters, near-duplicate search and decontamination all look for equal pieces of text. The name of a piece is a 64-bit
hash of its bytes (`runtime.text.hashing`).
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.folding import folded_words
from runtime.text.hashing import BASE, hashes_of_pieces, mix, prefix_sums, values_of
from runtime.text.unspaced import IDEOGRAPH_PLANES, SPACED_LETTER, shares_of

Mask = np.ndarray
"""bool, one entry per byte value or per byte."""


def byte_class(characters: bytes) -> Mask:
    """Return the table that is true for these byte values."""
    table = np.zeros(256, bool)
    table[np.frombuffer(characters, np.uint8)] = True
    return table


WHITESPACE = byte_class(b" \t\n\r\x0b\x0c")
NEWLINE = byte_class(b"\n")
LETTERS = byte_class(bytes([*range(65, 91), *range(97, 123), *range(128, 256)]))
"""ASCII letters, and every byte of a character outside ASCII."""
DIGITS = byte_class(b"0123456789")
_BYTE_VALUES = values_of(256)


@dataclasses.dataclass(frozen=True)
class Segments:
    """Pieces of a batch in order of position; a piece never crosses two documents."""

    starts: np.ndarray
    """int64, byte position in the batch."""
    ends: np.ndarray
    """int64, exclusive."""
    hashes: np.ndarray
    """uint64; equal bytes give equal hashes, wherever they stand."""
    documents: np.ndarray
    """int64, index of the document that each piece belongs to."""

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, places: np.ndarray | slice) -> "Segments":
        """Return the pieces at these places."""
        return Segments(self.starts[places], self.ends[places], self.hashes[places], self.documents[places])


class Counts:
    """Running counts of flags: an index gives how many are set before each place."""

    def __init__(self, flags: Mask) -> None:
        padded = np.zeros(len(flags) // 64 * 64 + 64, bool)
        padded[: len(flags)] = flags
        # One bit a flag and one sum for 64 of them are an eighth of a sum for each, and faster to build.
        self._bits = np.packbits(padded, bitorder="little").view("<u8")
        self._before = np.concatenate([[0], np.cumsum(np.bitwise_count(self._bits), dtype=np.int64)])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        words = places >> 6
        below = (np.uint64(1) << (places & 63).astype(np.uint64)) - np.uint64(1)
        return self._before[words] + np.bitwise_count(self._bits[words] & below)


class _Unspaced(NamedTuple):
    """Letters of scripts without spaces, by byte position."""

    letters: np.ndarray
    shares: np.ndarray
    """Share of a word that each letter is."""
    begins: np.ndarray
    """Letters and digits of any script that begin a piece if they are not the first of their run."""
    letters_before: np.ndarray
    """The letter or digit before each of `begins`; -1 if it is the first of its text."""


class TextBatch:
    """Texts joined by newlines; positions are bytes of the joined UTF-8."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self.texts = texts
        self.num_documents = len(texts)
        # A newline after each document keeps words, lines and n-grams inside it.
        self._bytes = b"\n".join([*encoded, b""])
        self.data = np.frombuffer(self._bytes, np.uint8)
        self.document_starts = np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int64)
        self.document_lengths = lengths

    @functools.cached_property
    def _sums(self) -> np.ndarray:
        return prefix_sums(_BYTE_VALUES[self.data])

    @functools.cached_property
    def is_space(self) -> Mask:
        """bool, one entry per byte: whether the byte is white space of ASCII."""
        return self.is_in(WHITESPACE)

    def is_in(self, table: Mask) -> Mask:
        """bool, one entry per byte: whether it is of this class."""
        return np.frombuffer(self._bytes.translate(table.tobytes()), bool)

    @functools.cached_property
    def characters_before(self) -> Counts:
        """Number of characters that begin before each byte."""
        return Counts((self.data & 0xC0) != 0x80)

    def segments(self, is_separator: Mask) -> Segments:
        """Return the runs of bytes between separators; `is_separator` has one entry per byte and holds for newlines."""
        return self.spans(*runs_of(~is_separator))

    def spans(self, starts: np.ndarray, ends: np.ndarray) -> Segments:
        return Segments(starts, ends, hashes_of_pieces(self._sums, starts, ends), self.documents_at(starts))

    def documents_at(self, starts: np.ndarray) -> np.ndarray:
        """Return the document that each byte belongs to."""
        return np.searchsorted(self.document_starts, starts, side="right") - 1

    @functools.cached_property
    def words(self) -> Segments:
        """Runs of bytes that are not white space; a letter of a script without spaces begins a piece of its own."""
        runs = self.segments(self.is_space)
        letters, before = self._unspaced.begins, self._unspaced.letters_before
        # The first letter of a run belongs to the piece that the run begins with, such as a bracket.
        begins = letters[before >= runs.starts[np.searchsorted(runs.starts, letters, side="right") - 1]]
        if not len(begins):
            return runs
        starts = np.sort(np.concatenate([runs.starts, begins]))
        run_ends = runs.ends[np.searchsorted(runs.starts, starts, side="right") - 1]
        return self.spans(starts, np.minimum(run_ends, np.append(starts[1:], len(self.data))))

    @functools.cached_property
    def word_shares(self) -> np.ndarray | None:
        """float64, the share in a word of each of `words`, by which they are counted; None if all are whole words."""
        if not len(self._unspaced.letters):
            return None
        shares = np.ones(len(self.words))
        shares[np.searchsorted(self.words.starts, self._unspaced.letters, side="right") - 1] = self._unspaced.shares
        return shares

    @functools.cached_property
    def _unspaced(self) -> "_Unspaced":
        """The letters of scripts without spaces, and where they begin pieces; most batches have none."""
        leads = np.flatnonzero(self.data >= 0xE0)
        first, second, third = (self.data[leads + offset].astype(np.uint32) for offset in range(3))
        codes = (first & 0xF) << 12 | (second & 0x3F) << 6 | third & 0x3F
        is_ideograph = (first >= 0xF0) & (second >= 0xA0)
        shares = shares_of(np.where(first >= 0xF0, np.where(is_ideograph, IDEOGRAPH_PLANES[0], 0), codes))
        found = (shares > 0) & (shares < SPACED_LETTER)
        parts = [self._piece_begins(document) for document in np.unique(self.documents_at(leads[found])).tolist()]
        parts.append((np.empty(0, np.int64), np.empty(0, np.int64)))
        begins, before = (np.concatenate(column) for column in zip(*parts, strict=True))
        return _Unspaced(leads[found], shares[found], begins, before)

    def _piece_begins(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where letters begin a piece in a text with such letters, and where the letter before each is."""
        start, end = self.document_starts[document], self.document_starts[document + 1] - 1
        places = np.flatnonzero((self.data[start:end] & 0xC0) != 0x80) + start
        shares = shares_of(np.frombuffer(self.texts[document].encode("utf-32-le"), "<u4"))
        letters = np.flatnonzero(shares)
        is_alone = shares[letters] < SPACED_LETTER
        begins = is_alone.copy()
        begins[1:] |= is_alone[:-1]
        places = places[letters]
        return places[begins], np.append(-1, places[:-1])[begins]

    @functools.cached_property
    def folded_words(self) -> Segments:
        """Words without their case, punctuation and layout (`runtime.text.folding`)."""
        starts, ends, hashes = folded_words(self.texts, self.data, self.document_starts)
        return Segments(starts, ends, hashes, self.documents_at(starts))

    @functools.cached_property
    def lines(self) -> Segments:
        """Lines without the white space around them, and without empty lines."""
        return self._trimmed(self.is_in(NEWLINE))

    @functools.cached_property
    def paragraphs(self) -> Segments:
        """Runs of lines between empty lines, trimmed."""
        is_newline = self.is_in(NEWLINE)
        beside = np.zeros_like(is_newline)
        beside[1:] |= is_newline[:-1]
        beside[:-1] |= is_newline[1:]
        separator = is_newline & beside
        separator[self.document_starts[1:] - 1] = True
        return self._trimmed(separator)

    def _trimmed(self, is_separator: Mask) -> Segments:
        raw = self.segments(is_separator)
        first = np.searchsorted(self.words.starts, raw.starts)
        after = np.searchsorted(self.words.starts, raw.ends)
        first, after = first[first < after], after[first < after]
        return self.spans(self.words.starts[first], self.words.ends[after - 1])

    def sums(self, segments: Segments, values: np.ndarray | None = None) -> np.ndarray:
        """Return, float64, the number of segments of each document, or the sum of their values."""
        return np.bincount(segments.documents, values, minlength=self.num_documents).astype(np.float64)


@functools.lru_cache(1 << 10)
def hash_of(text: str) -> np.uint64:
    """Return the hash that `TextBatch` gives a segment of these bytes."""
    batch = TextBatch([text])
    return batch.spans(np.array([0]), batch.document_lengths).hashes[0]


def ngram_hashes(words: Segments, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes of all runs of `length` words of one document, and the index of the first word of each."""
    ((_, hashes, first),) = growing_ngrams(words, (length,))
    return hashes, first


def growing_ngrams(words: Segments, lengths: Collection[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each length, ascending, with what `ngram_hashes` returns for it; no hash is computed twice."""
    running = np.zeros(len(words), np.uint64)
    for length in range(1, max(lengths, default=0) + 1):
        running = running[: max(len(words) - length + 1, 0)]
        running *= np.uint64(BASE)
        running += words.hashes[length - 1 :]
        if length in lengths:
            first = np.flatnonzero(words.documents[: len(running)] == words.documents[length - 1 :])
            yield length, mix(running[first]), first


def repeated(keys: np.ndarray) -> np.ndarray:
    """Return positions of the hashes that occur more than once, grouped by hash, ascending within one."""
    # A sort of values that all differ has one order on every processor, and takes a tenth of a stable sort's time. The
    # bits of a hash that a position leaves free are enough to bring equal hashes together.
    bits = np.uint64(len(keys).bit_length())
    ordered = keys >> bits << bits | np.arange(len(keys), dtype=np.uint64)
    ordered.sort()
    prefixes = ordered >> bits
    is_repeated = _has_neighbour(prefixes)
    found = (ordered[is_repeated] & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    return found[_has_neighbour(keys[found])]


def _has_neighbour(values: np.ndarray) -> np.ndarray:
    """Return bool: whether the value before or after is the same."""
    same = values[1:] == values[:-1]
    found = np.zeros(len(values), bool)
    found[1:] |= same
    found[:-1] |= same
    return found


def runs_of(flags: Mask) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of set flags begin and end."""
    edges = np.diff(flags.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def begins_run(*columns: np.ndarray) -> np.ndarray:
    """Return bool: whether each place of sorted columns differs from the place before it in one of them."""
    begins = np.ones(len(columns[0]), bool)
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return begins


def run_starts(*columns: np.ndarray) -> np.ndarray:
    """Return for each place of sorted columns the first place of its run of equal values."""
    return np.maximum.accumulate(np.where(begins_run(*columns), np.arange(len(columns[0])), 0))
