"""Each token counts the bytes it is made of, also inside a character."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from runtime.data.plain_tokenizer import plain_document
from runtime.data.token_bytes import TokenBytesError, byte_alphabet, token_bytes
from tests.catalogue import expect_error

TEXTS = (
    "吾輩は猫である。名前はまだ無い。どこで生れたか頓と見当がつかぬ。",
    "naïve café — 👩‍👩‍👧‍👦 and 🏴󠁧󠁢󠁥󠁮󠁧󠁿 flags, plain words, tabs\t\tand\n\nlines",
    "def f(x):\n    return x ** 2  # plain code, plain code, plain words",
)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """Return a byte-level BPE so small that most Japanese characters and emoji take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<日本>", special=False)])
    return tokenizer


def test_the_byte_alphabet_is_the_tokenizers_own():
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_text_count_its_bytes_where_decoding_them_one_by_one_does_not(byte_level, text):
    lengths = token_bytes(plain_document(byte_level.to_str()))
    ids = byte_level.encode(text).ids
    assert lengths[ids].sum() == len(text.encode())
    if any(ord(character) > 0x3000 for character in text):
        assert sum(len(byte_level.decode([index]).encode()) for index in ids) > len(text.encode())


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_counts_its_bytes(byte_level, text):
    ids = byte_level.encode(text, add_special_tokens=False).ids
    if byte_level.token_to_id("<|eos|>") not in ids:
        assert token_bytes(plain_document(byte_level.to_str()))[ids].sum() == len(text.encode())


def test_every_piece_has_the_bytes_of_its_spelling(byte_level):
    """Compares with pieces written out as bytes, one by one."""
    lengths, alphabet = token_bytes(plain_document(byte_level.to_str())), byte_alphabet()
    for piece, index in byte_level.get_vocab(with_added_tokens=False).items():
        if piece != "<|eos|>":
            assert lengths[index] == len(bytes(alphabet[character] for character in piece))


def test_special_tokens_count_nothing_and_other_added_tokens_their_text(byte_level):
    lengths = token_bytes(plain_document(byte_level.to_str()))
    assert lengths[byte_level.token_to_id("<|eos|>")] == 0
    assert lengths[byte_level.token_to_id("<日本>")] == len("<日本>".encode()) == 8
    assert len(lengths) == byte_level.get_vocab_size()
    assert lengths.dtype == np.int32


def test_pieces_of_a_byte_fallback_tokenizer_count_single_bytes():
    vocabulary = {"<unk>": 0, "▁a": 1, "a": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    lengths = token_bytes(plain_document(tokenizer.to_str()))
    assert lengths[[0, 1, 2, 3, 258]].tolist() == [0, 2, 1, 1, 1]
    assert lengths[tokenizer.encode("a猫").ids].sum() == 4


def test_a_tokenizer_without_byte_pieces_is_refused():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with expect_error(TokenBytesError):
        token_bytes(plain_document(tokenizer.to_str()))


def test_a_hole_among_the_ids_has_no_bytes(byte_level):
    document = json.loads(byte_level.to_str())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": 400, "content": "<|late|>"})
    assert token_bytes(document)[330:].tolist() == [0] * 71
