"""Repeats: n-grams that a text has more than once, runs of one n-gram, and shares of one character or short run."""

from typing import NamedTuple

import numpy as np

from runtime.text.batch import Segments, repeated, runs_of
from runtime.text.hashing import BASE, mix

_WHITE_SPACE = bytes(code for code in range(128) if chr(code).isspace())


class Repeats(NamedTuple):
    """The n-grams that occur more than once in their document, grouped by n-gram, in order of position in a group."""

    first: np.ndarray
    """int64, the first word of each."""
    begins: np.ndarray
    """bool, whether a group begins here."""

    @property
    def later(self) -> np.ndarray:
        """The first words of all but the first n-gram of each group."""
        return self.first[~self.begins]


class NgramRepeats:
    """The repeats of one batch for each n. An n-gram can only repeat where its first n - 1 words do."""

    def __init__(self, words: Segments) -> None:
        self._words = words
        self._found: list[Repeats] = []
        self._first = np.arange(len(words))
        self._hashes = mix(words.documents.astype(np.uint64) + np.uint64(1)) * np.uint64(BASE) + words.hashes

    def of_length(self, length: int) -> Repeats:
        """Return the repeats of n-grams of 2 words or more."""
        while len(self._found) < length - 1:
            self._found.append(self._next(len(self._found) + 1))
        return self._found[length - 2]

    def _next(self, after: int) -> Repeats:
        """Return the repeats of n-grams of `after` + 1 words, and go on with their places."""
        words, first, hashes = self._words, self._first, self._hashes
        last = first + after
        fits = last < len(words)
        fits[fits] &= words.documents[last[fits]] == words.documents[first[fits]]
        first, last = first[fits], last[fits]
        hashes = hashes[fits] * np.uint64(BASE) + words.hashes[last]
        keys = mix(hashes)
        order = repeated(keys)
        self._first, self._hashes = first[order], hashes[order]
        begins = np.ones(len(order), bool)
        begins[1:] = self._hashes[1:] != self._hashes[:-1]
        return Repeats(self._first, begins)


def longest_runs(words: Segments, num_documents: int, max_period: int, at_least_repeats: int) -> np.ndarray:
    """Return for each document how often an n-gram, n up to `max_period`, follows itself at most; 1 below the limit."""
    repeats = np.ones(num_documents, np.int64)
    for period in range(1, min(max_period, len(words) - 1) + 1):
        if not _may_repeat(words.hashes, period, (at_least_repeats - 1) * period):
            continue
        same = words.hashes[period:] == words.hashes[:-period]
        same &= words.documents[period:] == words.documents[:-period]
        starts, ends = runs_of(same)
        count = (ends - starts) // period + 1
        long = count >= at_least_repeats
        np.maximum.at(repeats, words.documents[starts[long]], count[long])
    return repeats


def _may_repeat(hashes: np.ndarray, period: int, least: int) -> bool:
    """Return whether `least` hashes in a row may equal those `period` before; such a run has several of the samples."""
    step = max(least // 4, 1)
    sampled = hashes[period::step] == hashes[: len(hashes) - period : step]
    in_a_row = least // step
    together = sampled[: max(len(sampled) - in_a_row + 1, 0)].copy()
    for offset in range(1, in_a_row):
        together &= sampled[offset : offset + len(together)]
    return bool(together.any())


def characters_of(text: str) -> np.ndarray:
    """Return the code points of a text without its white space, uint8 or uint32."""
    if text.isascii():
        return np.frombuffer(text.encode().translate(None, _WHITE_SPACE), np.uint8)
    return np.frombuffer("".join(text.split()).encode("utf-32-le"), "<u4")


def top_share(characters: np.ndarray) -> float:
    """Return the share of the most frequent character; 0 without characters."""
    return np.bincount(characters).max() / len(characters) if len(characters) else 0.0


def periodic_share(characters: np.ndarray, max_period: int, min_repeats: int, at_least: float) -> float:
    """Return the largest share of characters in runs of one period; 0 if it is at most `at_least`.

    A run of period p repeats its first p characters `min_repeats` times or more. Runs of different periods are not
    added up; a long enough run of a period is also one of its multiples.
    """
    most = at_least * len(characters)
    found = 0
    longest = min(max_period, len(characters) // min_repeats)
    for period in _possible_periods(characters, longest, min_repeats, most).tolist():
        starts, ends = runs_of(characters[period:] == characters[:-period])
        lengths = ends - starts
        lengths = lengths[lengths >= (min_repeats - 1) * period]
        found = max(found, min(int(lengths.sum()) + period * len(lengths), len(characters)))
    return found / len(characters) if found > most else 0.0


def _possible_periods(characters: np.ndarray, max_period: int, min_repeats: int, most: float) -> np.ndarray:
    """Return the periods whose runs may have more than `most` characters.

    In a run of period p, all but the first p characters equal the character p before, and so do their low bytes: at
    least `min_repeats` - 1 in a row. A sample of the characters has several of such a row.
    """
    if max_period < 1:
        return np.empty(0, np.int64)
    step = max((min_repeats - 1) // 2, 1)
    low_bytes = characters.astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(low_bytes, max_period + 1)[::step]
    similar = np.count_nonzero(windows[:, -2::-1] == windows[:, -1:], axis=0)
    # A row of 2 * step or more has 2 / 3 of its length / step samples or more. The first row may begin before the first
    # sample.
    least = most * (min_repeats - 1) / min_repeats * 2 / 3 / step - max_period / step - 1
    return np.flatnonzero(similar >= least) + 1
