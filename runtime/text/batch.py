"""A batch of texts as one byte array, with its words, lines and n-grams as NumPy arrays.

Filters, near-duplicate search and decontamination all look for equal pieces of text. The name of a piece is a 64-bit
hash of its bytes (`runtime.text.hashing`).
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from runtime.text.folding import folded_words
from runtime.text.hashing import BASE, hashes_of_pieces, mix, prefix_sums, values_of

Mask = np.ndarray
"""bool, one entry a byte value or a byte."""


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
_WIDE_SPACES = "".join(map(chr, (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)))
"""White space outside ASCII: characters of two and three bytes."""
_WIDE_SPACE_BYTES = np.array([int.from_bytes(space.encode().ljust(3, b"\0")) for space in _WIDE_SPACES], np.uint32)
_WIDE_SPACE_LEADS = byte_class(bytes({space.encode()[0] for space in _WIDE_SPACES}))
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


class TextBatch:
    """Texts joined by newlines; positions are bytes of the joined UTF-8."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self.texts = texts
        self.num_documents = len(texts)
        # A newline after each document keeps words, lines and n-grams inside it.
        self.data = np.frombuffer(b"\n".join([*encoded, b""]), np.uint8)
        self.document_starts = np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int64)
        self.document_lengths = lengths

    @functools.cached_property
    def _sums(self) -> np.ndarray:
        return prefix_sums(_BYTE_VALUES[self.data])

    @functools.cached_property
    def is_space(self) -> Mask:
        """bool, one entry a byte: whether the byte belongs to white space."""
        is_space = WHITESPACE[self.data]
        leads = np.flatnonzero(_WIDE_SPACE_LEADS[self.data])
        first, second, third = (self.data[leads + offset].astype(np.uint32) for offset in range(3))
        is_short = first < 0xE0
        found = np.isin(first << 16 | second << 8 | np.where(is_short, 0, third), _WIDE_SPACE_BYTES)
        for offset in range(3):
            is_space[leads[found & ~is_short if offset == 2 else found] + offset] = True
        return is_space

    @functools.cached_property
    def characters_before(self) -> np.ndarray:
        """int64, entry i: characters that begin before byte i."""
        return _count_before((self.data & 0xC0) != 0x80)

    def counts_before(self, table: Mask) -> np.ndarray:
        """int64, entry i: bytes of this class before byte i."""
        return _count_before(table[self.data])

    def segments(self, is_separator: Mask) -> Segments:
        """Return the runs of bytes between separators; `is_separator` has one entry a byte and holds for newlines."""
        inside = ~is_separator
        edges = np.diff(inside.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
        return self.spans(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1))

    def spans(self, starts: np.ndarray, ends: np.ndarray) -> Segments:
        return Segments(starts, ends, hashes_of_pieces(self._sums, starts, ends), self._documents_at(starts))

    def _documents_at(self, starts: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.document_starts, starts, side="right") - 1

    @functools.cached_property
    def words(self) -> Segments:
        """Runs of bytes that are not white space."""
        return self.segments(self.is_space)

    @functools.cached_property
    def folded_words(self) -> Segments:
        """Words without their case, punctuation and layout (`runtime.text.folding`)."""
        starts, ends, hashes = folded_words(self.texts, self.data, self.document_starts)
        return Segments(starts, ends, hashes, self._documents_at(starts))

    @functools.cached_property
    def lines(self) -> Segments:
        """Lines without the white space around them, and without empty lines."""
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
        """Return, float64, the number of segments of each document, or the sum of their values."""
        return np.bincount(segments.documents, values, minlength=self.num_documents).astype(np.float64)

    def excerpt(self, start: int, end: int) -> str:
        return self.data[start:end].tobytes().decode(errors="replace")


def hash_of(text: str) -> np.uint64:
    """Return the hash that `TextBatch` gives a segment of these bytes."""
    batch = TextBatch([text])
    return batch.spans(np.array([0]), batch.document_lengths).hashes[0]


def ngram_hashes(words: Segments, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes of all runs of `length` words of one document, and the index of the first word of each."""
    count = len(words) - length + 1
    if count <= 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes *= np.uint64(BASE)
        hashes += words.hashes[offset : offset + count]
    inside = words.documents[:count] == words.documents[length - 1 :]
    return mix(hashes[inside]), np.flatnonzero(inside)


def repeated(keys: np.ndarray) -> np.ndarray:
    """Return positions of the keys that occur more than once, grouped by key, ascending within a key."""
    # Only a stable sort gives one order on every processor.
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    is_repeated = np.zeros(len(keys), bool)
    is_repeated[1:] |= same
    is_repeated[:-1] |= same
    return order[is_repeated]


def _count_before(flags: Mask) -> np.ndarray:
    before = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=before[1:])
    return before
