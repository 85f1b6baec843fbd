"""Token text: joined, the texts of the tokens are the decoded sequence, whatever a token holds of a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.data.token_bytes import token_texts


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, "<eos>", "Ġt", "he", "Ġthe"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "t"), ("h", "e"), ("Ġt", "he")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "s": 2}, unk_token="s"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@given(text=st.text(max_size=12))
def test_joined_texts_are_the_text(byte_level: Tokenizer, text: str) -> None:
    encoded = byte_level.encode(text).ids
    texts = token_texts(byte_level, encoded)
    assert len(texts) == len(encoded)
    assert "".join(texts) == text


def test_the_last_token_of_a_character_has_its_text(byte_level: Tokenizer) -> None:
    assert token_texts(byte_level, byte_level.encode("é the€").ids) == ["", "é", " the", "", "", "€"]


def test_bytes_that_are_no_character_lose_no_token(byte_level: Tokenizer) -> None:
    half = byte_level.encode("é").ids[:1]
    texts = token_texts(byte_level, [*half, *byte_level.encode("ab").ids])
    assert len(texts) == 3
    assert "".join(texts).endswith("ab")


def test_a_space_that_a_decoder_drops_at_the_beginning_is_kept(metaspace: Tokenizer) -> None:
    assert token_texts(metaspace, [0, 1, 2, 0]) == ["the", " cat", "s", " the"]
