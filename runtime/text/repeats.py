"""Repeats: n-grams that a text has more than once, for growing n, and runs of one n-gram that follows itself."""

from typing import NamedTuple

import numpy as np

from runtime.text.batch import Segments, repeated
from runtime.text.hashing import BASE, mix


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
        edges = np.diff(same.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
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
