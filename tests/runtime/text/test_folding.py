"""Folding: words match plain Python over Unicode's tables, and do not depend on typography."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.batch import TextBatch
from runtime.text.folding import HOMOGLYPHS

FORMATS = "\u00ad\u200d\u200e\ufeff\ufe0f"
ALONE = "\u6c34\u3042\u30ab\u0e01"
# Two cases, two forms of one letter, marks, dashes, quotes, spaces, symbols, scripts with and without spaces.
ALPHABET = (
    "abAB9 .\n\t'\u2019\u00e9e\u0301\u00df\ufb01\uff21\u00b2"
    "\u0430\u0412\u03bf\u2014\u00a0\u2028\u3002\u2122\U0001f600\U0001d400\U00020000" + FORMATS + ALONE
)


def is_of_a_word(character):
    return unicodedata.category(character)[0] in "LMN"


def plain(text):
    """Return words with their places in the text, character by character."""
    words, opened = [], False
    for place, character in enumerate(text):
        if character in FORMATS:
            continue
        if not is_of_a_word(character):
            opened = False
            continue
        folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold()).translate(
            HOMOGLYPHS
        )
        is_alone = character in ALONE or character == "\U00020000"
        if not opened or is_alone or (words[-1][3] and not unicodedata.combining(character)):
            words.append(["", place, place, is_alone])
        words[-1] = [words[-1][0] + folded, words[-1][1], place + 1, is_alone]
        opened = True
    return [(word, text[begin:end]) for word, begin, end, _ in words]


@given(st.lists(st.text(alphabet=ALPHABET, max_size=40), min_size=1, max_size=6))
def test_words_match_plain_python(texts):
    batch = TextBatch(texts)
    words = batch.folded_words
    expected = [(index, *word) for index, text in enumerate(texts) for word in plain(text)]
    pieces = [batch.data[start:end].tobytes().decode() for start, end in zip(words.starts, words.ends, strict=True)]
    assert list(zip(words.documents.tolist(), pieces, strict=True)) == [(index, piece) for index, _, piece in expected]
    by_hash = dict(zip(words.hashes.tolist(), (folded for _, folded, _ in expected), strict=True))
    assert len(by_hash) == len({folded for _, folded, _ in expected})
    assert [by_hash[key] for key in words.hashes.tolist()] == [folded for _, folded, _ in expected]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("don't stop", "don\u2019t\u00a0stop"),
        ("caf\u00e9 au lait", "CAFE\u0301 au\u2003lait"),
        ("wheat, then rye", "wheat\u2014then rye"),
        ("Stra\u00dfe", "STRASSE"),
        ("paper", "\u0440\u0430p\u0435r"),
        ("BOX", "\u0412\u039f\u0425"),
        ("\u6c34\u706b", "\u6c34\u3001\u706b"),
    ],
)
def test_typography_does_not_change_words(one, other):
    first, second = (TextBatch([text]).folded_words.hashes.tolist() for text in (one, other))
    assert first == second != []


def test_a_word_does_not_depend_on_the_texts_beside_it():
    plain_text, other = "the river runs " * 20_000, "the river runs \u6c34" * 20_000
    words = TextBatch([plain_text, other, plain_text]).folded_words
    assert set(words.hashes[words.documents == 0].tolist()) < set(words.hashes[words.documents == 1].tolist())
    assert np.array_equal(words.hashes[words.documents == 0], words.hashes[words.documents == 2])
