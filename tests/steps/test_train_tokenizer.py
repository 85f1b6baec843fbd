"""Pins down: a special token is one that the tokenizer's file has, or none because somebody said so."""

import hashlib

import pytest

from marin_dag.errors import UserError
from runtime.text.tokenizer_training import BEGIN_OF_TEXT, train
from steps.input_tokenizer import InputTokenizerConfig, LocalTokenizer, input_tokenizer


@pytest.fixture
def taken(run_alone, tmp_path):
    """A tokenizer of 256 bytes and two specials, taken under such names."""
    document = train(["x"], vocab_size=258).to_str()
    (tmp_path / "tokenizer.json").write_text(document)
    local = LocalTokenizer(folder=str(tmp_path), sha256=hashlib.sha256(document.encode()).hexdigest())
    return lambda **names: run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=local, **names), "tokenizer")


@pytest.mark.parametrize("misspelt", ["<|begin_of_txt|>", "<s>", ""])
def test_a_beginning_of_text_that_the_file_lacks_is_refused_with_the_nearest_specials(taken, misspelt):
    with pytest.raises(
        UserError, match=r"tokenizer: bos_token: .* no token '.*'; the nearest of its 2 special"
    ) as caught:
        taken(bos_token=misspelt)
    assert f"{misspelt!r}" in str(caught.value) and f"'{BEGIN_OF_TEXT}'" in str(caught.value)
    assert str(caught.value).endswith("Name the right one, or None if its documents open with nothing.")


def test_an_end_of_text_cannot_be_left_out(taken):
    with pytest.raises(
        UserError, match=r"eos_token: .* no token '<\|eot_id\|>'; .*'<\|end_of_text\|>'.*the right one\.$"
    ):
        taken(eos_token="<|eot_id|>")


def test_without_a_beginning_only_where_that_is_said(taken):
    assert taken(bos_token=None).result.bos_token_id is None


def test_the_names_of_llama_3_are_found_unasked(taken):
    result = taken().result
    assert (result.bos_token_id, result.eos_token_id, result.vocab_size) == (0, 1, 258)
