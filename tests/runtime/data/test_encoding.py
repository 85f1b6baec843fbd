"""tiktoken encodes only where its ids are those of tokenizers, by proof and on the text."""

import hashlib
import json
import threading
from collections import Counter

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from runtime.data import encoding
from runtime.data.cache import TokenFormat
from runtime.data.encoding import Encoder, EncodersDifferError
from runtime.data.plain_tokenizer import plain_document
from runtime.data.ranks import NotConvertibleError, ranks_of
from runtime.text.tokenizer_training import END_OF_TEXT, train
from tests.catalogue import check_message, expect_error

TEXTS = [
    f"Naïve café {index}: 吾輩は猫である; x_{index} += {index * 7919}\n\n  def f(self): don't" for index in range(200)
]


@pytest.fixture(scope="module")
def document():
    return train(TEXTS, vocab_size=420).to_str()


def encoder_of(folder, document, library="auto", **options):
    path = folder / "tokenizer.json"
    path.write_text(document)
    size = Tokenizer.from_str(document).get_vocab_size()
    digest = hashlib.sha256(document.encode()).hexdigest()
    token_format = TokenFormat(vocab_size=size, eos_token_id=1, bos_token_id=0, tokenizer_digest=digest)
    return Encoder(str(path), token_format, library, **options)


@pytest.fixture(scope="module")
def both(document, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    return encoder_of(folder, document), encoder_of(folder, document, "tokenizers")


def test_a_trained_tokenizer_is_encoded_by_tiktoken(both):
    fast, slow = both
    assert (fast.library, slow.library) == ("tiktoken", "tokenizers")


@given(st.lists(st.text() | st.text("ab ', \n\t1٣é猫\r\u2028"), min_size=1, max_size=4))
def test_any_text_has_the_same_ids_by_both(both, texts):
    one, two = (encoder.encode(texts).ids for encoder in both)
    assert [ids.tolist() for ids in one] == [ids.tolist() for ids in two]


def test_any_character_in_any_surrounding_has_the_same_ids_by_both(both):
    """The libraries have their own Unicode tables. Tests all characters below U+0800 and some of all planes."""
    places = [*range(0x800), *range(0x800, 0x110000, 199)]
    marks = [chr(place) for place in places if not 0xD800 <= place <= 0xDFFF]
    texts = [f"a{c}a1{c}1{c} {c} {c}!{c}!\n{c}\n'{c}{c}" for c in marks]
    one, two = (encoder.encode(texts).ids for encoder in both)
    assert all(np.array_equal(fast, slow) for fast, slow in zip(one, two, strict=True))


@pytest.mark.parametrize("library", ["auto", "tokenizers"])
def test_a_tokenizer_that_was_saved_for_short_padded_batches_encodes_whole_texts_and_nothing_else(
    document, both, library, tmp_path
):
    """A fine-tuning run leaves such settings in its tokenizer.json."""
    tokenizer = Tokenizer.from_str(document)
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(length=64)
    texts = [TEXTS[0] * 50, "a"]
    found = encoder_of(tmp_path, tokenizer.to_str(), library).encode(texts).ids
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in both[1].encode(texts).ids]
    assert len(found[0]) > 64 > len(found[1])


def test_a_text_that_spells_a_special_token_is_text_for_both(both):
    for encoder in both:
        (ids,) = encoder.encode([f"a {END_OF_TEXT} b"]).ids
        assert 1 not in ids.tolist() and len(ids) > 5


def test_a_run_of_one_character_as_long_as_a_book_is_encoded(both):
    texts = ["a" * 300_000, " " * 300_000 + "x"]
    one, two = (encoder.encode(texts).ids for encoder in both)
    assert all(np.array_equal(fast, slow) for fast, slow in zip(one, two, strict=True))


def test_a_run_of_blanks_too_long_for_tiktoken_is_encoded_by_tokenizers(both, capfd):
    texts = [f"a b{' ' * 1_000_000}c d"]
    one, two = (encoder.encode(texts).ids for encoder in both)
    assert "panicked" in capfd.readouterr().err, "tiktoken must have failed, or the test shows nothing"
    assert np.array_equal(one[0], two[0])


def test_many_threads_share_a_few_encodings(document, both, tmp_path, monkeypatch):
    num_threads, used = encoding.COMPARED_TEXTS, {}
    all_begun = threading.Barrier(num_threads, timeout=60)

    class Encoding(tiktoken.Encoding):
        """An encoding that waits for all threads at the first text of each."""

        def encode_ordinary(self, text):
            if text and threading.get_ident() not in used:
                used[threading.get_ident()] = id(self)
                all_begun.wait()
            return super().encode_ordinary(text)

    monkeypatch.setattr(encoding, "MAX_ENCODINGS", 3)
    monkeypatch.setattr(tiktoken, "Encoding", Encoding)
    found = encoder_of(tmp_path, document, num_threads=num_threads).encode(TEXTS).ids
    assert sorted(Counter(used.values()).values()) == [2, 3, 3]
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in both[1].encode(TEXTS).ids]


def test_different_ids_on_the_text_are_an_error(document, tmp_path, monkeypatch):
    encoder = encoder_of(tmp_path, document)
    other = json.loads(document)
    other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}"
    encoder._tokenizer = Tokenizer.from_str(json.dumps(other))
    with expect_error(EncodersDifferError):
        encoder.encode(["1", TEXTS[0]], names=["web/6", "web/7"])


def changed(document, **changes):
    parts = json.loads(document)
    for path, value in changes.items():
        *way, last = path.split("__")
        place = parts
        for step in way:
            place = place[step]
        place[last] = value
    return json.dumps(parts)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"model__byte_fallback": True},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}},
    ],
)
def test_tokenizers_that_tiktoken_cannot_run_are_not_converted(document, changes):
    with expect_error(NotConvertibleError):
        ranks_of(plain_document(changed(document, **changes)))


def test_merges_in_another_order_than_their_ids_are_not_converted(document):
    merges = json.loads(document)["model"]["merges"]
    with expect_error(NotConvertibleError):
        ranks_of(plain_document(changed(document, model__merges=[merges[1], merges[0], *merges[2:]])))


def test_a_token_that_is_not_merged_back_is_not_converted():
    """`bc` is merged before `ab`, so tokenizers never makes `abc` from `ab` and `c`; tiktoken does."""
    small = json.loads(train(["x"], vocab_size=258).to_str())
    vocabulary = small["model"]["vocab"]
    for piece in ("bc", "ab", "abc"):
        vocabulary[piece] = len(vocabulary)
    small["model"]["merges"] = [["b", "c"], ["a", "b"], ["ab", "c"]]
    with expect_error(NotConvertibleError):
        ranks_of(plain_document(json.dumps(small)))
    vocabulary["cd"] = vocabulary.pop("abc")
    vocabulary["abcd"] = len(vocabulary)
    small["model"] |= {"merges": [["b", "c"], ["a", "b"], ["c", "d"], ["ab", "cd"]], "ignore_merges": True}
    assert b"abcd" in ranks_of(plain_document(json.dumps(small))).mergeable_ranks


@pytest.mark.parametrize("kind", ["normalizer", "pattern"])
def test_a_tokenizer_that_tiktoken_cannot_run_is_run_by_tokenizers(document, tmp_path, kind):
    grapheme = {"type": "Split", "pattern": {"Regex": r"\X"}, "behavior": "Isolated", "invert": False}
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    changes = {
        "normalizer": {"normalizer": {"type": "Lowercase"}},
        "pattern": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [grapheme, whole]}},
    }
    encoder = encoder_of(tmp_path, changed(document, **changes[kind]))
    assert encoder.library == "tokenizers"
    assert len(encoder.encode(["e\u0301"]).ids[0])
    check_message(encoder.reason)


class _Broken:
    """A library that fails for one text."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def checked(text, *rest, **options):
            if "broken" in text:
                raise Exception("no piece for it")
            return function(text, *rest, **options)

        return function if name == "encode_batch" else checked


def test_a_text_that_no_library_encodes_fails_alone(document, tmp_path):
    encoder = encoder_of(tmp_path, document)
    expected = encoder.encode(["one", "two"]).ids
    encoder._fast, encoder._tokenizer = _Broken(encoder._fast), _Broken(encoder._tokenizer)
    found = encoder.encode(["one", "broken", "two"])
    assert found.failures == {1: "no piece for it"} and not len(found.ids[1])
    assert all(np.array_equal(one, two) for one, two in zip(expected, (found.ids[0], found.ids[2]), strict=True))
