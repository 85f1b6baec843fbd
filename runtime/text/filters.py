"""Filters: rules evaluated over a batch of texts at once; the first rule that a text fails names its reason."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runtime.text import filter_rules, unspaced
from runtime.text.batch import TextBatch
from runtime.text.filter_rules import C4Lines, Rule
from runtime.text.measures import SENTENCE_ENDS, Measures
from runtime.text.quality import QualityModel

MEASURED_AGAIN = 0.5
"""If at most this share of texts is left, a rule measures them apart from the rejected texts."""
NO_LINE = "C4: no line is left"
BULLETS = "-*•‣▶●○■□▪"
TERMINAL_PUNCTUATION = "\"'”’»」』）" + SENTENCE_ENDS
_OTHER_NEWLINES = "\r\v\f\x85\u2028\u2029"
_WIDE_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class Rejection(NamedTuple):
    """The reason to count a dropped text by, and the value behind it."""

    reason: str
    detail: str
    rule: int
    """Place of the rule among the filter's."""


class Finding(NamedTuple):
    """Values of a batch, one a document, and the limit that they must keep."""

    reason: str
    values: np.ndarray
    is_least: bool
    limit: float

    @property
    def fails(self) -> np.ndarray:
        """bool: the documents that fail; NaN fails."""
        return ~(self.values >= self.limit if self.is_least else self.values <= self.limit)

    def detail(self, index: int) -> str:
        """Return value and limit of a document."""
        return f"{self.values[index]:.6g}, at {'least' if self.is_least else 'most'} {self.limit:g}"


def filtered(texts: Sequence[str], rules: Sequence[Rule], quality: QualityModel | None = None) -> list[str | Rejection]:
    """Return for each text what the edits leave of it, or the rejection by the first rule that it fails."""
    results: list[str | Rejection] = list(texts)
    first = 0
    # Runs of rules judge the same text; edits between them change it.
    for is_edit, run in itertools.groupby(rules, key=lambda rule: isinstance(rule, C4Lines)):
        group = list(run)
        rows = [row for row, result in enumerate(results) if isinstance(result, str)]
        kept = [str(results[row]) for row in rows]
        found: Sequence[str | Rejection | None]
        if is_edit:
            for edit in (rule for rule in group if isinstance(rule, C4Lines)):
                kept = [c4_lines(text, edit) for text in kept]
            found = [text if text.strip() else Rejection(NO_LINE, "0 lines, at least 1", 0) for text in kept]
        else:
            found = rejections(kept, group, quality)
        for row, result in zip(rows, found, strict=True):
            if result is not None:
                results[row] = result if isinstance(result, str) else result._replace(rule=first + result.rule)
        first += len(group)
    return results


def measured(
    texts: Sequence[str], rules: Sequence[Rule], quality: QualityModel | None = None
) -> Iterator[tuple[int, Finding]]:
    """Yield place and finding of every rule over all texts, whichever rule drops them; edits apply to later rules."""
    measures: Measures | None = None
    for place, rule in enumerate(rules):
        if isinstance(rule, C4Lines):
            texts, measures = [c4_lines(text, rule) for text in texts], None
            yield place, at_least(NO_LINE, np.array([len(text.strip()) for text in texts]), 1)
            continue
        measures = measures or Measures(TextBatch([with_plain_blanks(text) for text in texts]), quality)
        yield from ((place, finding) for finding in findings(rule, measures))


def c4_lines(text: str, rule: C4Lines) -> str:
    """Return the lines that C4 keeps, without their citation marks; "" if it keeps none."""
    kept, marks = [], rule.terminal_punctuation
    has_unspaced = unspaced.is_unspaced(text)
    uncited = _CITATION.sub("", text) if rule.remove_citations and "[" in text else text
    lower_text = uncited.lower() if text.isascii() else ""  # outside ASCII, lower case depends on what stands around
    forbidden = [part for part in rule.forbidden if not lower_text or part in lower_text]
    for raw in text.splitlines():
        is_unspaced = has_unspaced and not raw.isascii()
        if len(raw) > rule.max_word_characters:
            words = unspaced.spaced(raw) if is_unspaced else raw
            if max(map(len, words.split()), default=0) > rule.max_word_characters:
                continue
        line = raw.strip()
        if rule.remove_citations and "[" in line:
            line = _CITATION.sub("", line).strip()
        # As in C4's code: a citation mark is no word.
        num_words = unspaced.num_words(line) if is_unspaced else len(line.split())
        if num_words < rule.min_words:
            continue
        is_open = not line.endswith(marks) or line.endswith("...")
        if marks and is_open and ord(line[-1:] or " ") not in unspaced.SPACE_ENDS_CLAUSE:
            continue
        lower = line.lower() if forbidden else ""
        if not any(part in lower for part in forbidden):
            kept.append(line)
    return "\n".join(kept)


def rejections(
    texts: Sequence[str], rules: Sequence[Rule], quality: QualityModel | None = None
) -> list[Rejection | None]:
    """Return for each text None, or the rejection by the first rule that it fails; no rule is an edit."""
    verdicts: list[Rejection | None] = [None] * len(texts)
    rows, measures = list(range(len(texts))), Measures(TextBatch([]), quality)
    for place, rule in enumerate(rules):
        left = [row for row in rows if verdicts[row] is None]
        if len(left) <= MEASURED_AGAIN * len(rows) or not measures.batch.num_documents:
            rows, measures = left, Measures(TextBatch([with_plain_blanks(texts[row]) for row in left]), quality)
        for finding in findings(rule, measures) if left else ():
            for index in np.flatnonzero(finding.fails).tolist():
                if verdicts[rows[index]] is None:
                    verdicts[rows[index]] = Rejection(finding.reason, finding.detail(index), place)
    return verdicts


def with_plain_blanks(text: str) -> str:
    """Return a text whose lines all end in a line feed, and whose words have the spaces of ASCII between them."""
    if any(newline in text for newline in _OTHER_NEWLINES):
        text = re.sub(f"\r\n|[{_OTHER_NEWLINES}]", "\n", text)
    return text if text.isascii() else _WIDE_SPACES.sub(" ", text)


def findings(rule: Rule, measures: Measures) -> Iterator[Finding]:
    match rule:
        case filter_rules.Length():
            yield at_least("too few words", measures.num_words, rule.min_words)
            if rule.max_words is not None:
                yield at_most("too many words", measures.num_words, rule.max_words)
        case filter_rules.GopherQuality():
            yield from _gopher_quality(rule, measures)
        case filter_rules.GopherRepetition():
            yield from _gopher_repetition(rule, measures)
        case filter_rules.C4Document():
            yield at_least("C4: too few sentences", measures.num_sentences, rule.min_sentences)
            for text in rule.forbidden:
                yield at_most(f"C4: contains {text!r}", measures.occurrences_without_case(text), 0)
        case filter_rules.BadWords():
            yield at_most("C4: bad words", measures.words_among(rule.words), 0)
        case filter_rules.Language():
            reason = f"language: not {' or '.join(rule.languages)}"
            yield at_least(reason, measures.language_probability(rule.languages), rule.min_probability)
        case filter_rules.QualityScore():
            if rule.min_score is None:
                raise ValueError(f"{rule}: only the filter step finds the score of a fraction. Give min_score here.")
            yield at_least("quality classifier", measures.quality_scores, rule.min_score)
        case filter_rules.FineWebQuality():
            yield at_least(
                "FineWeb: lines with terminal punctuation",
                measures.line_share(measures.line_ends_with(TERMINAL_PUNCTUATION)),
                rule.min_lines_with_terminal_punctuation,
            )
            yield at_most(
                "FineWeb: characters in duplicate lines",
                measures.duplicates(measures.batch.lines)[1],
                rule.max_duplicate_line_characters,
            )
            short = measures.line_characters < rule.short_line_characters
            yield at_most("FineWeb: short lines", measures.line_share(short), rule.max_short_lines)
            if rule.max_newlines_per_word is not None:
                yield at_most("FineWeb: newlines per word", measures.newlines_per_word, rule.max_newlines_per_word)
        case filter_rules.RepeatedPeriod():
            repeats = measures.longest_repetition(rule.max_period, rule.max_repeats)
            yield at_most("one n-gram over and over", repeats, rule.max_repeats - 1)
            share = measures.periodic_share(rule.max_period_characters, rule.max_repeats, rule.max_periodic_share)
            yield at_most("a few characters over and over", share, rule.max_periodic_share)
        case filter_rules.SingleCharacter():
            yield at_most("one character makes up the text", measures.top_character_share, rule.max_share)
        case filter_rules.CodeLayout():
            yield at_most("code: longest line", measures.longest_line, rule.max_line_characters)
            yield at_most("code: mean line", measures.mean_line, rule.max_mean_line_characters)
            yield at_least("code: letters and digits", measures.alphanumeric_share, rule.min_alphanumeric)
            yield at_most("code: generated file", measures.generated_markers(rule.generated_markers), 0)
        case _:
            raise TypeError(f"{type(rule).__name__}: no case of `findings` measures this rule; add one.")


def at_least(reason: str, values: np.ndarray, limit: float) -> Finding:
    return Finding(reason, values, True, limit)


def at_most(reason: str, values: np.ndarray, limit: float) -> Finding:
    return Finding(reason, values, False, limit)


def _gopher_quality(rule: filter_rules.GopherQuality, measures: Measures) -> Iterator[Finding]:
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
    ending = measures.line_share(measures.line_ends_in_ellipsis)
    yield at_most("Gopher: lines ending in an ellipsis", ending, rule.max_ellipsis_lines)
    yield at_least("Gopher: words with a letter", measures.alphabetic_words, rule.min_alphabetic_words)
    yield at_least("Gopher: stop words", measures.num_stop_words(rule.stop_words), rule.min_stop_words)


def _gopher_repetition(rule: filter_rules.GopherRepetition, measures: Measures) -> Iterator[Finding]:
    lines, paragraphs = measures.batch.lines, measures.batch.paragraphs
    for name, segments, of_pieces, of_characters in (
        ("lines", lines, rule.max_duplicate_lines, rule.max_duplicate_line_characters),
        ("paragraphs", paragraphs, rule.max_duplicate_paragraphs, rule.max_duplicate_paragraph_characters),
    ):
        pieces, characters = measures.duplicates(segments)
        yield at_most(f"Gopher: duplicate {name}", pieces, of_pieces)
        yield at_most(f"Gopher: characters in duplicate {name}", characters, of_characters)
    for length, limit in rule.max_top_ngram_characters:
        yield at_most(f"Gopher: most frequent {length}-gram", measures.top_ngram_characters(length), limit)
    for length, limit in rule.max_duplicate_ngram_characters:
        yield at_most(f"Gopher: duplicate {length}-grams", measures.duplicate_ngram_characters(length), limit)
