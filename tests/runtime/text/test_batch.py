"""Batches: pieces match plain Python, and equal pieces have equal hashes."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.batch import TextBatch, hash_of, ngram_hashes, repeated
from runtime.text.hashing import mix

HASH_OF_THE = 0xCEBBA419FC5B8C27

# Few characters, so that pieces repeat: upper case, white space of ASCII, characters of 2 to 4 bytes.
texts = st.lists(st.text(alphabet="abAB .\n\té…😀â", max_size=60), min_size=1, max_size=8)


@given(texts)
def test_words_and_lines_match_plain_python(documents):
    batch = TextBatch(documents)
    words = [(index, word.encode()) for index, text in enumerate(documents) for word in text.split()]
    lines = [
        (index, line.strip().encode())
        for index, text in enumerate(documents)
        for line in text.split("\n")
        if line.strip()
    ]
    for segments, expected in ((batch.words, words), (batch.lines, lines)):
        found = zip(segments.documents.tolist(), segments.starts, segments.ends, strict=True)
        assert [(index, batch.data[start:end].tobytes()) for index, start, end in found] == expected


@given(texts)
def test_hashes_are_equal_if_and_only_if_words_are(documents):
    words = TextBatch(documents).words
    plain = [word.encode() for text in documents for word in text.split()]
    by_hash = dict(zip(words.hashes.tolist(), plain, strict=True))
    assert len(by_hash) == len(set(plain))
    assert [by_hash[key] for key in words.hashes.tolist()] == plain


@given(texts)
def test_the_hash_of_a_word_does_not_depend_on_its_place(documents):
    words = TextBatch(documents).words
    plain = [word.encode() for text in documents for word in text.split()]
    assert words.hashes.tolist() == [int(hash_of(word.decode())) for word in plain]


@given(texts, st.integers(1, 4))
def test_ngrams_never_cross_two_documents(documents, length):
    keys, first = ngram_hashes(TextBatch(documents).words, length)
    expected = []
    offset = 0
    for text in documents:
        count = len(text.split())
        expected += range(offset, offset + max(0, count - length + 1))
        offset += count
    assert first.tolist() == expected
    assert len(keys) == len(first)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_repeated_groups_keys_in_order_of_position(values):
    keys = mix(np.array(values, np.uint64))
    positions = repeated(keys).tolist()
    counts = Counter(values)
    assert sorted(positions) == [index for index, value in enumerate(values) if counts[value] > 1]
    assert positions == sorted(positions, key=lambda index: (keys[index], index))


def test_a_hash_is_the_same_in_every_process():
    assert hash_of("the") == TextBatch(["The"]).folded_words.hashes[0] == np.uint64(HASH_OF_THE)
