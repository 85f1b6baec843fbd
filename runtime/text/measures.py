"""Measures: the values of a batch's texts that filter rules compare with their limits."""

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.batch import DIGITS, LETTERS, Segments, TextBatch, byte_class, hash_of, ngram_hashes, repeated
from runtime.text.characters import characters_of, periodic_share, top_share
from runtime.text.hashing import mix
from runtime.text.language import Guess, languages_of
from runtime.text.quality import QualityModel

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
SENTENCE_END = byte_class(b".!?")
QUOTATION_MARKS = byte_class(b"\"')")
GENERATED_MARKER_LINES = 5


class Duplicates(NamedTuple):
    """Shares of a document's pieces, and of its characters, that repeat an earlier piece."""

    pieces: np.ndarray
    characters: np.ndarray


class Measures:
    """Values of each document of a batch, computed when a rule first asks."""

    def __init__(self, batch: TextBatch, quality: QualityModel | None = None) -> None:
        self.batch = batch
        self._quality = quality

    def per_word(self, values: np.ndarray) -> np.ndarray:
        return values / np.maximum(self.num_words, 1)

    def per_character(self, values: np.ndarray) -> np.ndarray:
        return values / np.maximum(self.num_characters, 1)

    def line_share(self, is_counted: np.ndarray) -> np.ndarray:
        lines = self.batch.lines
        return self.batch.sums(lines, is_counted) / np.maximum(self.batch.sums(lines), 1)

    def characters_between(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        return self.batch.characters_before[ends] - self.batch.characters_before[starts]

    @functools.cached_property
    def num_characters(self) -> np.ndarray:
        starts = self.batch.document_starts
        return self.characters_between(starts[:-1], starts[1:] - 1)

    @functools.cached_property
    def num_words(self) -> np.ndarray:
        return self.batch.sums(self.batch.words)

    @functools.cached_property
    def mean_word_length(self) -> np.ndarray:
        words = self.batch.words
        return self.per_word(self.batch.sums(words, self.characters_between(words.starts, words.ends)))

    @functools.cached_property
    def alphabetic_words(self) -> np.ndarray:
        words, letters = self.batch.words, self.batch.counts_before(LETTERS)
        return self.per_word(self.batch.sums(words, letters[words.ends] > letters[words.starts]))

    @functools.cached_property
    def num_stop_words(self) -> np.ndarray:
        words = self.batch.words
        present = [self.batch.sums(words, words.hashes == hash_of(word)) > 0 for word in STOP_WORDS]
        return np.sum(present, axis=0)

    @functools.cached_property
    def num_sentences(self) -> np.ndarray:
        # A full stop inside a word (a version, a file name) ends no sentence.
        words, data = self.batch.words, self.batch.data
        last, before = data[words.ends - 1], data[np.maximum(words.ends - 2, words.starts)]
        return self.batch.sums(words, SENTENCE_END[last] | QUOTATION_MARKS[last] & SENTENCE_END[before])

    @functools.cached_property
    def line_characters(self) -> np.ndarray:
        return self.characters_between(self.batch.lines.starts, self.batch.lines.ends)

    @functools.cached_property
    def longest_line(self) -> np.ndarray:
        longest = np.zeros(self.batch.num_documents, np.int64)
        np.maximum.at(longest, self.batch.lines.documents, self.line_characters)
        return longest

    @functools.cached_property
    def mean_line(self) -> np.ndarray:
        lines = self.batch.lines
        return self.batch.sums(lines, self.line_characters) / np.maximum(self.batch.sums(lines), 1)

    @functools.cached_property
    def alphanumeric_share(self) -> np.ndarray:
        # A character outside ASCII counts by its first byte, as a letter.
        continuation = byte_class(bytes(range(0x80, 0xC0)))
        counted = self.batch.counts_before((LETTERS | DIGITS) & ~continuation)
        starts = self.batch.document_starts
        return self.per_character(counted[starts[1:] - 1] - counted[starts[:-1]])

    @functools.cached_property
    def _characters(self) -> list[np.ndarray]:
        return [characters_of(text) for text in self.batch.texts]

    @functools.cached_property
    def top_character_share(self) -> np.ndarray:
        return np.array([top_share(characters) for characters in self._characters])

    def periodic_share(self, max_period: int, min_repeats: int, at_least_share: float) -> np.ndarray:
        shares = (periodic_share(each, max_period, min_repeats, at_least_share) for each in self._characters)
        return np.fromiter(shares, np.float64, self.batch.num_documents)

    def occurrences(self, text: str) -> np.ndarray:
        return np.array([document.count(text) for document in self.batch.texts])

    def occurrences_without_case(self, text: str) -> np.ndarray:
        return np.array([document.lower().count(text.lower()) for document in self.batch.texts])

    def words_among(self, words: tuple[str, ...]) -> np.ndarray:
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)
        return np.array([pattern.search(document) is not None for document in self.batch.texts], np.int64)

    @functools.cached_property
    def _languages(self) -> list[Guess]:
        return languages_of(self.batch.texts)

    def language_probability(self, languages: Sequence[str]) -> np.ndarray:
        """Return the probability of the most probable language, 0 if it is none of these."""
        found = (guess.probability if guess.language in languages else 0.0 for guess in self._languages)
        return np.fromiter(found, np.float64, self.batch.num_documents)

    @functools.cached_property
    def quality_scores(self) -> np.ndarray:
        if self._quality is None:
            raise ValueError("QualityScore without a classifier. Set `quality_classifier`.")
        return self._quality.scores(self.batch)

    def generated_markers(self, markers: Sequence[str]) -> np.ndarray:
        heads = ["\n".join(text[:2_000].lower().split("\n")[:GENERATED_MARKER_LINES]) for text in self.batch.texts]
        return np.array([sum(marker in head for marker in markers) for head in heads])

    def line_begins_with(self, marks: Sequence[str]) -> np.ndarray:
        starts, ends = self.batch.lines.starts, self.batch.lines.ends
        return functools.reduce(np.logical_or, (self._bytes_at(starts, ends, mark) for mark in marks))

    def line_ends_with(self, marks: Sequence[str]) -> np.ndarray:
        starts, ends = self.batch.lines.starts, self.batch.lines.ends
        found = (self._bytes_at(np.maximum(ends - len(mark.encode()), starts), ends, mark) for mark in marks)
        return functools.reduce(np.logical_or, found)

    def _bytes_at(self, starts: np.ndarray, ends: np.ndarray, mark: str) -> np.ndarray:
        encoded = mark.encode()
        equal = ends - starts >= len(encoded)
        for offset, byte in enumerate(encoded):
            equal &= self.batch.data[np.minimum(starts + offset, len(self.batch.data) - 1)] == byte
        return equal

    def duplicates(self, segments: Segments) -> Duplicates:
        later = self._later_occurrences(_within_documents(segments.hashes, segments.documents))
        characters = self.characters_between(segments.starts, segments.ends)
        pieces = np.bincount(segments.documents[later], minlength=self.batch.num_documents)
        covered = np.bincount(segments.documents[later], characters[later], minlength=self.batch.num_documents)
        return Duplicates(pieces / np.maximum(self.batch.sums(segments), 1), self.per_character(covered))

    @staticmethod
    def _later_occurrences(keys: np.ndarray) -> np.ndarray:
        grouped = repeated(keys)
        return grouped[1:][keys[grouped[1:]] == keys[grouped[:-1]]]

    def top_ngram_characters(self, length: int) -> np.ndarray:
        words = self.batch.words
        hashes, first = ngram_hashes(words, length)
        keys = _within_documents(hashes, words.documents[first])
        grouped = repeated(keys)
        shares = np.zeros(self.batch.num_documents)
        if not len(grouped):
            return shares
        group_starts = np.flatnonzero(np.concatenate([[True], keys[grouped[1:]] != keys[grouped[:-1]]]))
        counts = np.diff(np.append(group_starts, len(grouped)))
        word = first[grouped[group_starts]]
        characters = self.characters_between(words.starts[word], words.ends[word + length - 1])
        documents = words.documents[word]
        order = np.lexsort([characters, counts, documents])
        is_last = np.append(documents[order][1:] != documents[order][:-1], True)
        top = order[is_last]
        shares[documents[top]] = counts[top] * characters[top]
        return self.per_character(shares)

    def duplicate_ngram_characters(self, length: int) -> np.ndarray:
        words = self.batch.words
        hashes, first = ngram_hashes(words, length)
        later = first[self._later_occurrences(_within_documents(hashes, words.documents[first]))]
        edges = np.zeros(len(words) + 1, np.int64)
        np.add.at(edges, later, 1)
        np.add.at(edges, later + length, -1)
        covered = np.cumsum(edges[:-1]) > 0
        characters = self.characters_between(words.starts, words.ends)
        return self.per_character(self.batch.sums(words, characters * covered))

    def longest_repetition(self, max_period: int, at_least_repeats: int) -> np.ndarray:
        """Return how often an n-gram, n up to `max_period`, follows itself at most; 1 below the limit."""
        words = self.batch.words
        repeats = np.ones(self.batch.num_documents, np.int64)
        for period in range(1, min(max_period, len(words) - 1) + 1):
            same = words.hashes[period:] == words.hashes[:-period]
            same &= words.documents[period:] == words.documents[:-period]
            edges = np.diff(same.astype(np.int8), prepend=np.int8(0), append=np.int8(0))
            starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            count = (ends - starts) // period + 1
            long = count >= at_least_repeats
            np.maximum.at(repeats, words.documents[starts[long]], count[long])
        return repeats


def _within_documents(hashes: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return keys that are equal only for equal hashes of one document."""
    return mix(hashes ^ mix(documents.astype(np.uint64) + np.uint64(1)))
