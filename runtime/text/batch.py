"""A batch of texts as one byte array: words, lines and n-grams of all of them at once, as NumPy arrays.

Filters, near-duplicate search and decontamination all ask "which pieces of text are equal?". A piece is
named by a 64-bit hash of its bytes: a difference of two prefix sums of a polynomial modulo 2**64, so that
hashing every word of a batch costs one pass over its bytes and no loop over words. The hashes are the same
on every machine and in every process. Two of a billion different pieces collide with a probability of about
3 %, which moves a share or an estimate by nothing that a threshold could see.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

Mask = np.ndarray
"""bool, one entry a byte value or a byte."""

_BASE = 0x9E3779B97F4A7C15 | 1
_MODULUS = 1 << 64
_BLOCK = 1 << 12


def byte_class(characters: bytes) -> Mask:
    """The table that is true for these byte values."""
    table = np.zeros(256, bool)
    table[np.frombuffer(characters, np.uint8)] = True
    return table


WHITESPACE = byte_class(b" \t\n\r\x0b\x0c")
NEWLINE = byte_class(b"\n")
LETTERS = byte_class(bytes([*range(65, 91), *range(97, 123), *range(128, 256)]))
"""ASCII letters, and every byte of a character outside ASCII."""
DIGITS = byte_class(b"0123456789")
_UPPER = byte_class(bytes(range(65, 91)))


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


class TextBatch:
    """Texts joined by newlines; positions are bytes of the joined UTF-8."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self.texts = texts
        self.num_documents = len(texts)
        # Every document ends in a newline of its own, so that no word, line or n-gram crosses into the next.
        self.data = np.frombuffer(b"\n".join([*encoded, b""]), np.uint8)
        self.document_starts = np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int64)
        self.document_lengths = lengths

    @functools.cached_property
    def _prefix(self) -> np.ndarray:
        return _prefix_sums(self.data)

    @functools.cached_property
    def _lower_prefix(self) -> np.ndarray:
        return _prefix_sums(np.where(_UPPER[self.data], self.data + np.uint8(32), self.data))

    @functools.cached_property
    def characters_before(self) -> np.ndarray:
        """int64, entry i: characters that begin before byte i."""
        return _count_before((self.data & 0xC0) != 0x80)

    def counts_before(self, table: Mask) -> np.ndarray:
        """int64, entry i: bytes of this class before byte i."""
        return _count_before(table[self.data])

    def segments(self, is_separator: Mask, *, lower: bool = False) -> Segments:
        """The runs of bytes between separators; `is_separator` has one entry a byte and holds for newlines."""
        inside = ~is_separator
        edges = np.diff(inside.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
        return self.spans(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), lower=lower)

    def spans(self, starts: np.ndarray, ends: np.ndarray, *, lower: bool = False) -> Segments:
        prefix = self._lower_prefix if lower else self._prefix
        hashes = (prefix[ends] - prefix[starts]) * _powers_at(_INVERSE_BASE, starts)
        documents = np.searchsorted(self.document_starts, starts, side="right") - 1
        return Segments(starts, ends, mix(hashes ^ mix((ends - starts).astype(np.uint64))), documents)

    @functools.cached_property
    def words(self) -> Segments:
        """Runs of bytes that are not ASCII white space."""
        return self.segments(WHITESPACE[self.data])

    @functools.cached_property
    def folded_words(self) -> Segments:
        """Runs of letters and digits, ASCII letters in lower case: what survives a change of layout."""
        return self.segments(~(LETTERS | DIGITS)[self.data], lower=True)

    @functools.cached_property
    def lines(self) -> Segments:
        """Lines without the white space around them; lines of nothing else are left out."""
        return self._trimmed(NEWLINE[self.data])

    @functools.cached_property
    def paragraphs(self) -> Segments:
        """Runs of lines between empty lines, trimmed."""
        is_newline = NEWLINE[self.data]
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
        """float64, for each document the number of its segments, or the sum of their values."""
        return np.bincount(segments.documents, values, minlength=self.num_documents).astype(np.float64)

    def excerpt(self, start: int, end: int) -> str:
        return self.data[start:end].tobytes().decode(errors="replace")


def hash_of(text: str) -> np.uint64:
    """The hash that `TextBatch` gives a segment of these bytes."""
    batch = TextBatch([text])
    return batch.spans(np.array([0]), batch.document_lengths).hashes[0]


def ngram_hashes(words: Segments, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of all runs of `length` words of one document, and the index of the first word of each."""
    count = len(words) - length + 1
    if count <= 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes *= np.uint64(_BASE)
        hashes += words.hashes[offset : offset + count]
    inside = words.documents[:count] == words.documents[length - 1 :]
    return mix(hashes[inside]), np.flatnonzero(inside)


def repeated(keys: np.ndarray) -> np.ndarray:
    """Positions of the keys that occur more than once, grouped by key, ascending within a key."""
    # Only a stable sort may choose who comes first: the fast ones order equal keys by the processor's vectors.
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    is_repeated = np.zeros(len(keys), bool)
    is_repeated[1:] |= same
    is_repeated[:-1] |= same
    return order[is_repeated]


def mix(values: np.ndarray) -> np.ndarray:
    """Spreads every bit over the word (the finaliser of SplitMix64)."""
    values = values ^ (values >> np.uint64(30))
    values = values * np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _count_before(flags: Mask) -> np.ndarray:
    before = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=before[1:])
    return before


def _prefix_sums(data: np.ndarray) -> np.ndarray:
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(_BYTE_VALUES[data] * _powers(_BASE, len(data)), out=sums[1:])
    return sums


def _power_tables(base: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([pow(base, i, _MODULUS) for i in range(_BLOCK)], np.uint64)
    high = np.cumprod(np.full(max(blocks, 1), pow(base, _BLOCK, _MODULUS), np.uint64))
    return low, np.concatenate([np.ones(1, np.uint64), high[:-1]])


@functools.lru_cache(maxsize=4)
def _tables(base: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    return _power_tables(base, blocks)


def _powers(base: int, count: int) -> np.ndarray:
    low, high = _tables(base, 1 << max(0, (count // _BLOCK).bit_length()))
    blocks = count // _BLOCK + 1
    return (high[:blocks, None] * low[None, :]).ravel()[:count]


def _powers_at(base: int, positions: np.ndarray) -> np.ndarray:
    largest = int(positions[-1]) if len(positions) else 0
    low, high = _tables(base, 1 << max(0, (largest // _BLOCK).bit_length()))
    return high[positions // _BLOCK] * low[positions % _BLOCK]


_INVERSE_BASE = pow(_BASE, -1, _MODULUS)
_BYTE_VALUES = mix(np.arange(1, 257, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93))
