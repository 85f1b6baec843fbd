"""Folding: the words of a text for comparison, without case, punctuation, layout and variants of characters.

- A word is a run of letters, marks and digits. All other characters separate words, so that apostrophes, dashes and
  spaces of all kinds are alike.
- A character of a script that is written without spaces (`runtime.text.unspaced`) is a word.
- Letters have no case (ß is ss) and are in compatibility decomposition (NFKD, UAX #15): é is the same from one code
  point or two, ﬁ is fi, and letters of full width are plain ones.
- Letters of Cyrillic, Greek and Armenian that look like a Latin one are that one.
- Soft hyphens, joiners, marks of direction and variation selectors are removed.

Unicode's tables are those of the running Python.
"""

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text import unspaced
from runtime.text.hashing import hashes_of_pieces, prefix_sums, values_of

_BETWEEN, _LETTER, _ALONE, _MARK = range(4)
_TABLED, _IDEOGRAPHS = unspaced.IDEOGRAPH_PLANES
"""Characters below the first have a table entry each; the planes from there to the second are ideographs."""
_GROUP_BYTES = 1 << 18
"""Texts are folded this many bytes at a time, which stay in a core's cache."""
_APOSTROPHES = "\u02b9\u02bb\u02bc\u02bd\u02c8"
"""Letters by category that serve as apostrophes and primes."""
_ZERO_WIDTH_SPACE = "\u200b"
HOMOGLYPHS = str.maketrans("авекмнорстухіјѕһԁԛԝαβεικνορτυχϲօսհոցɑɡı", "abekmhopctyxijshdqwabeikvoptuxcouhngagi")
"""Letters that look alike, in small or in capital form (Unicode's confusables, UTS #39)."""


Words = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Starts, ends and hashes of words in order of position; starts and ends are bytes of the UTF-8."""


def folded_words(texts: Sequence[str], data: np.ndarray, document_starts: np.ndarray) -> Words:
    """Return the words of texts; `data` holds the texts as UTF-8, each with a newline after it."""
    parts = [_of_group(texts[first:after], data, document_starts[first], document_starts[after])
             for first, after in _groups(document_starts)]  # fmt: skip
    empty = np.empty(0, np.int64)
    parts.append((empty, empty, np.empty(0, np.uint64)))
    starts, ends, hashes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return starts, ends, hashes


def _groups(document_starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts of about `_GROUP_BYTES` together, or of one longer text."""
    first, last = 0, len(document_starts) - 1
    while first < last:
        after = int(np.searchsorted(document_starts, document_starts[first] + _GROUP_BYTES, side="right")) - 1
        yield first, max(after, first + 1)
        first = max(after, first + 1)


def _of_group(texts: Sequence[str], data: np.ndarray, begin: int, end: int) -> Words:
    group, table = data[begin:end], _table()
    if not np.any(group & 0x80):
        folded = table.ascii_folded[group]
        starts, ends = _edges(table.ascii_kinds[folded])
        hashes = hashes_of_pieces(prefix_sums(table.values[folded]), starts, ends)
        return starts + begin, ends + begin, hashes
    # NumPy takes indices of this type as they are, and would convert others for each table.
    characters = np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le"), "<u4").astype(np.intp)
    np.minimum(characters, _IDEOGRAPHS, out=characters)
    places = np.flatnonzero((group & 0xC0) != 0x80)
    origins = np.repeat(np.arange(len(characters)), table.lengths.take(characters))
    of_folded = table.firsts.take(characters.take(origins))
    further = np.flatnonzero(origins[1:] == origins[:-1]) + 1
    of_folded[further] += further - np.searchsorted(origins, origins[further])
    folded = table.folded.take(of_folded)
    starts, ends = _edges(table.kinds.take(folded))
    hashes = hashes_of_pieces(prefix_sums(table.values.take(folded)), starts, ends)
    places = np.append(places, len(group)) + begin
    return places[origins[starts]], places[origins[ends - 1] + 1], hashes


def _edges(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where words begin and end, by the kinds of their characters; the last character is a separator."""
    inside = kinds != _BETWEEN
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    alone = kinds == _ALONE
    if alone.any():
        begins |= alone
        begins[1:] |= alone[:-1] & (kinds[1:] == _LETTER)
    # A word ends where the next begins, or at the first separator.
    breaks = np.flatnonzero(begins | ~inside)
    places = np.flatnonzero(begins[breaks])
    return breaks[places], breaks[places + 1]


class _Table(NamedTuple):
    """The characters that each is folded to; the entry `_IDEOGRAPHS` stands for all later ones."""

    kinds: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    """How many characters each is folded to: 0 to 18."""
    firsts: np.ndarray
    """The place in `folded` where they begin."""
    folded: np.ndarray
    ascii_kinds: np.ndarray
    ascii_folded: np.ndarray


@functools.cache
def _table() -> _Table:
    kinds = np.full(_IDEOGRAPHS + 1, _ALONE, np.uint8)
    kinds[:_TABLED] = np.fromiter((_kind(chr(code)) for code in range(_TABLED)), np.uint8, _TABLED)
    for first, after in unspaced.RANGES:
        kinds[first:after][kinds[first:after] == _LETTER] = _ALONE
    kinds[_IDEOGRAPHS] = _BETWEEN
    folds = ["".join(_folded(chr(code))) if kinds[code] != _BETWEEN else chr(code) for code in range(_TABLED)]
    for code in range(0x80, _TABLED):
        if _is_nothing(chr(code)):
            folds[code] = ""
    beyond = np.arange(_TABLED, _IDEOGRAPHS + 1, dtype=np.uint32)
    flat = np.frombuffer("".join(folds).encode("utf-32-le", "surrogatepass"), "<u4")
    lengths = np.concatenate([np.fromiter(map(len, folds), np.uint8, _TABLED), np.ones(len(beyond), np.uint8)])
    ends = np.cumsum(lengths, dtype=np.int64)
    folded = np.concatenate([flat, beyond])
    lower = folded[ends[:128] - 1].astype(np.uint8)
    values = values_of(_IDEOGRAPHS + 1)
    return _Table(kinds, values, lengths, ends - lengths, folded.astype(np.intp), kinds[:128], lower)


def _kind(character: str) -> int:
    if character in _APOSTROPHES:
        return _BETWEEN
    return {"L": _LETTER, "N": _LETTER, "M": _MARK}.get(unicodedata.category(character)[0], _BETWEEN)


def _folded(character: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return folded.translate(HOMOGLYPHS)


def _is_nothing(character: str) -> bool:
    is_format = unicodedata.category(character) == "Cf" and character != _ZERO_WIDTH_SPACE
    return is_format or "\ufe00" <= character <= "\ufe0f"
