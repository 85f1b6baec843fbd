"""Tokenizers that others publish encode any text as plain characters, the same at each call."""

import json
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from runtime.data.normalizing import UNICODE_FORMS, Normalizing
from runtime.data.plain_tokenizer import TokenizerFileError, plain_document
from runtime.text.tokenizer_training import END_OF_TEXT, train
from tests.catalogue import expect_error
from tests.runtime.data.test_encoding import TEXTS, changed, encoder_of

LETTERS = [*"abcdefghijklmnopqrstuvwxyz</>0123456789xABCDEF", "▁"]


@pytest.fixture(scope="module")
def document() -> str:
    return train(TEXTS, vocab_size=420).to_str()


def unigram(*, byte_fallback: bool = False, special: bool = True, prepend: str = "never") -> str:
    """Return a Unigram tokenizer whose vocabulary lists its special tokens, as SentencePiece writes them."""
    pieces = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -5.0) for letter in dict.fromkeys(LETTERS))]
    if byte_fallback:
        pieces += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme=prepend), decoders.ByteFallback()])
    add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
    add([AddedToken(content, special=special, normalized=False) for content in ("<s>", "</s>")])
    return tokenizer.to_str()


def byte_fallback_bpe() -> str:
    """Return a BPE like that of Llama 2: a normaliser that marks spaces, and special tokens in the vocabulary."""
    pieces = ["<s>", "</s>", "<unk>", *dict.fromkeys(LETTERS), *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


def word_level() -> str:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3, "</s": 4, ">": 5}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


SPELLING = {
    "unigram": unigram(),
    "unigram, a space before": unigram(prepend="always"),
    "unigram with bytes": unigram(byte_fallback=True),
    "unigram, not marked special": unigram(special=False),
    "byte-fallback BPE": byte_fallback_bpe(),
    "words": word_level(),
}


@pytest.mark.parametrize("kind", SPELLING)
@pytest.mark.parametrize("text", ["</s>", "a</s>b", "a </s> b", "<s></s></s>", "  </s>\n</s", "<<s>/s>"])
def test_text_that_spells_a_special_token_is_plain_characters(tmp_path, kind, text):
    encoder = encoder_of(tmp_path, SPELLING[kind])
    found = encoder.encode([text, "a"])
    assert not found.failures
    assert not {0, 1} & set(found.ids[0].tolist()), "neither BOS nor EOS"
    if kind.startswith("unigram"):
        decoded = encoder._tokenizer.decode(found.ids[0].tolist(), skip_special_tokens=False)
        assert decoded.replace("<unk>", "\n").strip(" ") == text.strip(" ")
    assert len(found.ids[1]) >= 1


def test_text_that_spells_a_byte_piece_is_plain_characters(tmp_path):
    encoder = encoder_of(tmp_path, unigram(byte_fallback=True))
    spelled, character = encoder.encode(["a<0x41>b", "é"]).ids
    assert encoder._tokenizer.decode(spelled.tolist()) == "a<0x41>b"
    assert encoder.token_bytes[spelled].sum() == 8 and encoder.token_bytes[character].sum() == 2


def test_dropout_is_off(document, tmp_path):
    encoder = encoder_of(tmp_path, changed(document, model__dropout=0.9), "tokenizers")
    expected = encoder_of(tmp_path, document, "tokenizers").encode(TEXTS).ids
    for _ in range(2):
        assert all(map(np.array_equal, encoder.encode(TEXTS).ids, expected))
    assert encoder_of(tmp_path, changed(document, model__dropout=0.9)).library == "tiktoken"


@pytest.mark.parametrize("make", [lambda document: document, lambda _: unigram()], ids=["BPE", "Unigram"])
def test_a_file_without_the_type_of_its_model_is_read(document, make, tmp_path):
    parts = json.loads(make(document))
    expected = encoder_of(tmp_path, json.dumps(parts))
    del parts["model"]["type"]
    encoder = encoder_of(tmp_path, json.dumps(parts))
    assert encoder.library == expected.library
    assert all(map(np.array_equal, encoder.encode(TEXTS).ids, expected.encode(TEXTS).ids))


def test_a_normalizer_to_a_unicode_form_keeps_the_fast_library(document, tmp_path):
    texts = ["cafe\u0301 na\u0308ive", "plain", "\ufb01 \u212b", "caf\u00e9 \U00011f02\u0345"]
    for form in sorted(UNICODE_FORMS):
        normalizing = changed(document, normalizer={"type": "Sequence", "normalizers": [{"type": form}]})
        fast, slow = (encoder_of(tmp_path, normalizing, library) for library in ("auto", "tokenizers"))
        assert fast.library == "tiktoken"
        found, expected = fast.encode(texts), slow.encode(texts)
        assert all(map(np.array_equal, found.ids, expected.ids))
        assert found[1:] == expected[1:]
        assert found.num_changed == sum(unicodedata.normalize(form, text) != text for text in texts)
        counted = sum(int(fast.token_bytes[ids].sum()) for ids in found.ids)
        assert counted == sum(len(text.encode()) for text in texts) + found.normalizer_bytes


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_unicode_forms_are_those_of_the_library(text):
    for form in sorted(UNICODE_FORMS):
        assert Normalizing({"type": form})(text) == getattr(normalizers, form)().normalize_str(text)


def test_the_form_of_each_character_beside_marks_is_that_of_the_library():
    places = (place for place in range(0, 0x30000, 29) if not 0xD800 <= place <= 0xDFFF)
    text = " ".join(f"a\u0345{chr(place)}\u0334{chr(place)}\u0301" for place in places)
    for form in sorted(UNICODE_FORMS):
        for part in text.split("\u0301 "):
            assert Normalizing({"type": form})(part) == getattr(normalizers, form)().normalize_str(part)


@pytest.mark.parametrize("part", [{"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True}])
def test_texts_that_do_not_come_back_are_counted_and_bytes_are_those_after_normalizing(document, tmp_path, part):
    encoder = encoder_of(tmp_path, changed(document, normalizer=part))
    texts = ["Ab ", "ab", "İ"]
    found = encoder.encode(texts)
    kept = [text.lower() if part["type"] == "Lowercase" else text.strip() for text in texts]
    assert encoder.library == "tokenizers"
    assert found.num_changed == sum(before != after for before, after in zip(texts, kept, strict=True))
    assert found.normalizer_bytes == sum(map(len, map(str.encode, kept))) - sum(map(len, map(str.encode, texts)))


def test_marks_for_spaces_change_no_text(tmp_path):
    found = encoder_of(tmp_path, byte_fallback_bpe()).encode(["a b c", ""])
    assert (found.num_changed, found.normalizer_bytes) == (0, 0)


def test_added_tokens_that_are_not_special_are_found_and_keep_the_fast_library(document, tmp_path):
    """Qwen's tokenizers have such tokens, `<tool_call>` for one."""
    tokenizer = Tokenizer.from_str(document)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    fast, slow = (encoder_of(tmp_path, tokenizer.to_str(), library) for library in ("auto", "tokenizers"))
    assert fast.library == "tiktoken"
    texts = ["a <tool_call> b", "a <tool_cal", *TEXTS]
    found = fast.encode(texts).ids
    assert 420 in found[0].tolist() and 420 not in found[1].tolist()
    assert all(map(np.array_equal, found, slow.encode(texts).ids))


def test_a_text_that_cannot_be_encoded_fails_alone(tmp_path):
    """The model has no unknown token."""
    tokenizer = Tokenizer(models.Unigram([("<s>", 0.0), ("</s>", 0.0), ("a", -1.0)]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(["<s>", "</s>"])
    found = encoder_of(tmp_path, tokenizer.to_str()).encode(["a", "ab", "aa", "</s>"])
    assert sorted(found.failures) == [1, 3]
    assert [ids.tolist() for ids in found.ids] == [[2], [], [2, 2], []]


def test_files_that_hold_no_tokenizer_or_ids_beyond_any_embedding_are_refused(document):
    for content in ("{}", "[", changed(document, model__vocab={}, model__merges=[], added_tokens=[])):
        with expect_error(TokenizerFileError):
            plain_document(content)
    far = json.loads(document)["model"]["vocab"] | {"zz": 4_000_000_000}
    with expect_error(TokenizerFileError):
        plain_document(changed(document, model__vocab=far))


def test_very_many_special_tokens_that_the_model_knows_are_plain_characters_in_little_time(tmp_path):
    names = [f"<|reserved_{number}|>" for number in range(5_000)]
    parts = json.loads(unigram())
    first = len(parts["model"]["vocab"])
    parts["model"]["vocab"] += [[name, 0.0] for name in names] + [["|", -5.0], ["_", -5.0]]
    like = parts["added_tokens"][0]
    parts["added_tokens"] += [like | {"id": first + number, "content": name} for number, name in enumerate(names)]
    began = time.process_time()
    encoder = encoder_of(tmp_path, json.dumps(parts))
    (ids,) = encoder.encode([f"a {names[7]} and {names[4_999]} < b " * 200]).ids
    assert encoder._tokenizer.decode(ids.tolist(), skip_special_tokens=False).startswith("a <|reserved_7|> and")
    assert not set(range(first, first + 5_000)) & set(ids.tolist())
    assert time.process_time() - began < 20


def test_a_vocabulary_of_added_tokens_alone_or_of_very_many_is_read(document, tmp_path):
    many = Tokenizer.from_str(document)
    many.add_special_tokens([f"<|reserved_{number}|>" for number in range(20_000)])
    began = time.process_time()
    encoder = encoder_of(tmp_path, many.to_str())
    assert len(encoder.token_bytes) == 20_420 and encoder.library == "tiktoken"
    (ids,) = encoder.encode([f"a <|reserved_7|> {END_OF_TEXT}"]).ids
    assert ids.max() < 420 and time.process_time() - began < 60
    empty = Tokenizer(models.BPE(vocab={}, merges=[]))
    empty.decoder = decoders.ByteLevel()
    empty.add_special_tokens(["<s>", "</s>"])
    assert encoder_of(tmp_path, empty.to_str()).encode(["a"]).ids[0].tolist() == []
