"""Filters: rules evaluated over a batch of texts at once; each dropped text gets its first reason."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text.batch import (
    DIGITS,
    LETTERS,
    WHITESPACE,
    Segments,
    TextBatch,
    byte_class,
    hash_of,
    ngram_hashes,
    repeated,
)
from runtime.text.edits import c4_lines
from runtime.text.filter_rules import (
    BadWords,
    C4Document,
    C4Lines,
    CodeLayout,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    QualityScore,
    RepeatedPeriod,
    Rule,
    SingleCharacter,
)
from runtime.text.hashing import mix
from runtime.text.language import Guess, languages_of
from runtime.text.quality import QualityModel

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLETS = ("-", "*", "•", "‣", "▶", "●", "○", "■", "□", "▪")
TERMINAL_PUNCTUATION = (".", "!", "?", '"', "'", "”", "’", "…", "。", "！", "？")
SENTENCE_END = byte_class(b".!?")
QUOTATION_MARKS = byte_class(b"\"')")
GENERATED_MARKER_LINES = 5


class Rejection(NamedTuple):
    """Why a text is dropped: a reason to count by, and the figure behind it."""

    reason: str
    detail: str


class Finding(NamedTuple):
    """One figure of every document of a batch, and which of them fail by it."""

    reason: str
    values: np.ndarray
    limit: str
    fails: np.ndarray


def filtered(texts: Sequence[str], rules: Sequence[Rule], quality: QualityModel | None = None) -> list[str | Rejection]:
    """For each text what is left of it after the edits, or the first of the rules, in their order, that it fails."""
    results: list[str | Rejection] = list(texts)
    for is_edit, group in _runs(rules):
        rows = [row for row, result in enumerate(results) if isinstance(result, str)]
        kept = [str(results[row]) for row in rows]
        found = [_edited(text, group) for text in kept] if is_edit else rejections(kept, group, quality)
        for row, result in zip(rows, found, strict=True):
            if result is not None:
                results[row] = result
    return results


def _runs(rules: Sequence[Rule]) -> Iterator[tuple[bool, list[Rule]]]:
    """Rules that judge the same text together, and the edits between them."""
    for is_edit, group in itertools.groupby(rules, key=lambda rule: isinstance(rule, C4Lines)):
        yield is_edit, list(group)


def _edited(text: str, edits: Sequence[Rule]) -> str | Rejection:
    for edit in edits:
        assert isinstance(edit, C4Lines)
        text = c4_lines(text, edit)
    return text or Rejection("C4: no line is left", "0 lines, at least 1")


def rejections(
    texts: Sequence[str], rules: Sequence[Rule], quality: QualityModel | None = None
) -> list[Rejection | None]:
    """For each text None, or the first of the rules, in their order, that it fails; none of them is an edit."""
    verdicts: list[Rejection | None] = [None] * len(texts)
    if not texts:
        return verdicts
    measures = Measures(TextBatch(texts), quality)
    for rule in rules:
        for finding in findings(rule, measures):
            for index in np.flatnonzero(finding.fails).tolist():
                if verdicts[index] is None:
                    detail = f"{finding.values[index]:.6g}, {finding.limit}"
                    verdicts[index] = Rejection(finding.reason, detail)
    return verdicts


def findings(rule: Rule, measures: "Measures") -> Iterator[Finding]:
    match rule:
        case Length():
            yield at_least("too few words", measures.num_words, rule.min_words)
            if rule.max_words is not None:
                yield at_most("too many words", measures.num_words, rule.max_words)
        case GopherQuality():
            yield from _gopher_quality(rule, measures)
        case GopherRepetition():
            yield from _gopher_repetition(rule, measures)
        case C4Document():
            yield at_least("C4: too few sentences", measures.num_sentences, rule.min_sentences)
            for text in rule.forbidden:
                yield at_most(f"C4: contains {text!r}", measures.occurrences_without_case(text), 0)
        case BadWords():
            yield at_most("C4: bad words", measures.words_among(rule.words), 0)
        case Language():
            reason = f"language: not {' or '.join(rule.languages)}"
            yield at_least(reason, measures.language_probability(rule.languages), rule.min_probability)
        case QualityScore():
            if rule.min_score is None:
                raise ValueError(
                    f"{rule}: the score that keeps this fraction is not known yet; the filter step finds it."
                )
            yield at_least("quality classifier", measures.quality_scores, rule.min_score)
        case C4Lines():
            raise ValueError("C4Lines is an edit; `filtered` applies it.")
        case FineWebQuality():
            yield at_least(
                "FineWeb: lines with terminal punctuation",
                measures.line_share(measures.line_ends_with(TERMINAL_PUNCTUATION)),
                rule.min_lines_with_terminal_punctuation,
            )
            yield at_most(
                "FineWeb: characters in duplicate lines",
                measures.duplicates(measures.batch.lines).characters,
                rule.max_duplicate_line_characters,
            )
            short = measures.line_characters < rule.short_line_characters
            yield at_most("FineWeb: short lines", measures.line_share(short), rule.max_short_lines)
        case RepeatedPeriod():
            repeats = measures.longest_repetition(rule.max_period, rule.max_repeats)
            yield at_most("one n-gram over and over", repeats, rule.max_repeats - 1)
        case SingleCharacter():
            yield at_most("one character makes up the text", measures.top_character_share, rule.max_share)
        case CodeLayout():
            yield at_most("code: longest line", measures.longest_line, rule.max_line_characters)
            yield at_most("code: mean line", measures.mean_line, rule.max_mean_line_characters)
            yield at_least("code: letters and digits", measures.alphanumeric_share, rule.min_alphanumeric)
            yield at_most("code: generated file", measures.generated_markers(rule.generated_markers), 0)


def at_least(reason: str, values: np.ndarray, limit: float) -> Finding:
    return Finding(reason, values, f"at least {limit:g}", ~(values >= limit))


def at_most(reason: str, values: np.ndarray, limit: float) -> Finding:
    return Finding(reason, values, f"at most {limit:g}", ~(values <= limit))


def _gopher_quality(rule: GopherQuality, measures: "Measures") -> Iterator[Finding]:
    yield at_least("Gopher: too few words", measures.num_words, rule.min_words)
    yield at_most("Gopher: too many words", measures.num_words, rule.max_words)
    yield at_least("Gopher: mean word length", measures.mean_word_length, rule.min_mean_word_length)
    yield at_most("Gopher: mean word length", measures.mean_word_length, rule.max_mean_word_length)
    hashes = measures.per_word(measures.occurrences("#"))
    yield at_most("Gopher: hash signs", hashes, rule.max_symbols_per_word)
    ellipses = measures.per_word(measures.occurrences("...") + measures.occurrences("…"))
    yield at_most("Gopher: ellipses", ellipses, rule.max_symbols_per_word)
    bullets = measures.line_share(measures.line_begins_with(BULLETS))
    yield at_most("Gopher: lines with bullets", bullets, rule.max_bullet_lines)
    ending = measures.line_share(measures.line_ends_with(("...", "…")))
    yield at_most("Gopher: lines ending in an ellipsis", ending, rule.max_ellipsis_lines)
    yield at_least("Gopher: words with a letter", measures.alphabetic_words, rule.min_alphabetic_words)
    yield at_least("Gopher: stop words", measures.num_stop_words, rule.min_stop_words)


def _gopher_repetition(rule: GopherRepetition, measures: "Measures") -> Iterator[Finding]:
    for name, segments, pieces, characters in (
        ("lines", measures.batch.lines, rule.max_duplicate_lines, rule.max_duplicate_line_characters),
        (
            "paragraphs",
            measures.batch.paragraphs,
            rule.max_duplicate_paragraphs,
            rule.max_duplicate_paragraph_characters,
        ),
    ):
        duplicates = measures.duplicates(segments)
        yield at_most(f"Gopher: duplicate {name}", duplicates.pieces, pieces)
        yield at_most(f"Gopher: characters in duplicate {name}", duplicates.characters, characters)
    for length, limit in rule.max_top_ngram_characters:
        yield at_most(f"Gopher: most frequent {length}-gram", measures.top_ngram_characters(length), limit)
    for length, limit in rule.max_duplicate_ngram_characters:
        yield at_most(f"Gopher: duplicate {length}-grams", measures.duplicate_ngram_characters(length), limit)


class Duplicates(NamedTuple):
    """Shares of a document's pieces, and of its characters, that repeat an earlier piece."""

    pieces: np.ndarray
    characters: np.ndarray


class Measures:
    """Figures of each document of a batch, computed when a rule first asks."""

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
        # Of a character outside ASCII only the first byte counts, and as a letter.
        continuation = byte_class(bytes(range(0x80, 0xC0)))
        counted = self.batch.counts_before((LETTERS | DIGITS) & ~continuation)
        starts = self.batch.document_starts
        return self.per_character(counted[starts[1:] - 1] - counted[starts[:-1]])

    @functools.cached_property
    def top_character_share(self) -> np.ndarray:
        counts = np.stack(
            [np.bincount(self._document_bytes(i), minlength=256) for i in range(self.batch.num_documents)]
        )
        counts[:, WHITESPACE] = 0
        characters = counts[:, :0x80].sum(axis=1) + counts[:, 0xC0:].sum(axis=1)
        return counts[:, :0x80].max(axis=1) / np.maximum(characters, 1)

    def _document_bytes(self, index: int) -> np.ndarray:
        return self.batch.data[self.batch.document_starts[index] : self.batch.document_starts[index + 1]]

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
        """Of the most probable language, if it is one of these; else 0."""
        found = (guess.probability if guess.language in languages else 0.0 for guess in self._languages)
        return np.fromiter(found, np.float64, self.batch.num_documents)

    @functools.cached_property
    def quality_scores(self) -> np.ndarray:
        if self._quality is None:
            raise ValueError("A rule asks for the quality score, but no classifier is named; set `quality_classifier`.")
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
        """The most often that one n-gram, n up to `max_period`, follows on itself; 1 where below the limit."""
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
    """Keys that are equal only for equal hashes of one document."""
    return mix(hashes ^ mix(documents.astype(np.uint64) + np.uint64(1)))
