"""Tokenizers that others publish: a tokenize step leaves out what it cannot encode, names it, and warns of changes."""

import hashlib
import json
import logging
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from runtime.data.cache import TokenCache
from runtime.data.gates import GateError, GateLimits
from steps.input_tokenizer import InputTokenizerConfig, LocalTokenizer, input_tokenizer, local_tokenizer
from steps.tokenizer import TokenizerResult
from steps.train_tokenizer import write_tokenizer
from tests.catalogue import expect_error
from tests.runtime.data.test_encoding import changed
from tests.runtime.data.test_tokenizers_of_others import unigram
from tests.steps.test_tokenize import TEXTS, Context, run, write_shards


def written(folder: Path, document: str, **tokens: str | None) -> Input[TokenizerResult]:
    """Return the tokenizer that the steps make of a published file."""
    context = Context(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result = write_tokenizer(document, context, **({"eos_token": "</s>", "bos_token": "<s>"} | tokens))
    return Input(name="tokenizer", digest="t" * 64, path=str(folder), result=result)


def byte_level(**changes: object) -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: index for index, letter in enumerate(alphabet, start=2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return changed(tokenizer.to_str(), **changes)


def without_unknown() -> str:
    tokenizer = Tokenizer(models.Unigram([("<s>", 0.0), ("</s>", 0.0), *((letter, -3.0) for letter in "ab▁")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<s>", "</s>")])
    return tokenizer.to_str()


def test_a_text_that_spells_eos_is_tokenized_by_a_unigram_model(tmp_path):
    texts = [f"text {number} spells </s> and <s>" for number in range(20)]
    documents = write_shards(tmp_path / "documents", [texts])
    limits = GateLimits(min_bytes_per_token=0.5)
    result = run(tmp_path / "out", documents, written(tmp_path / "tokenizer", unigram()), gates=limits)
    assert result.num_train_documents + result.num_validation_documents == 20
    cache = TokenCache.open(f"{tmp_path}/out/train")
    assert (cache.read(0, cache.num_tokens) == 1).sum() == cache.num_documents


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_document_that_cannot_be_encoded_names_itself_and_ends_no_source_within_its_share(tmp_path, caplog, share):
    texts = ["a b ab", *("ab " * number for number in range(1, 19)), "a c"]
    documents = write_shards(tmp_path / "documents", [texts[:10], texts[10:]])
    tokenizer = written(tmp_path / "tokenizer", without_unknown())
    limits = GateLimits(min_bytes_per_token=0.5, max_unencoded_share=share)
    if share == 0:
        with expect_error(GateError) as raised:
            run(tmp_path / "out", documents, tokenizer, gates=limits)
        assert raised.value.gates == ("max_unencoded_share",)
        return
    result = run(tmp_path / "out", documents, tokenizer, gates=limits)
    assert result.num_train_documents + result.num_validation_documents == 19
    assert result.num_train_bytes + result.num_validation_bytes == sum(map(len, texts[:-1]))
    *_, warning = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert warning.args[:2] == (1, 20) and "1/9" in warning.args[2]


@pytest.mark.parametrize("kind", ["Lowercase", "NFC"])
def test_a_normalizer_that_changes_texts_is_a_warning_with_their_number(tmp_path, caplog, kind):
    texts = [text.replace("é", "e\u0301") if number < 3 else text.lower() for number, text in enumerate(TEXTS)]
    documents = write_shards(tmp_path / "documents", [texts])
    limits = GateLimits(min_bytes_per_token=0.5)
    tokenizer = written(tmp_path / "tokenizer", byte_level(normalizer={"type": kind}))
    result = run(tmp_path / "out", documents, tokenizer, gates=limits)
    assert result.encoder == ("tiktoken" if kind == "NFC" else "tokenizers")
    *_, warning = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert warning.args == (kind, 3, len(texts))


def test_dropout_is_taken_out_of_the_file_with_a_warning(tmp_path, caplog):
    tokenizer = written(tmp_path, byte_level(model__dropout=0.1))
    content = (tmp_path / "tokenizer.json").read_bytes()
    assert json.loads(content)["model"]["dropout"] is None
    assert tokenizer.result.digest == hashlib.sha256(content).hexdigest()
    (warning,) = caplog.records
    assert warning.args == (0.1,)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    with expect_error(UserError):
        written(tmp_path, "{}")


def test_one_token_as_bos_and_eos_is_refused_before_anything_runs():
    config = InputTokenizerConfig(
        tokenizer=LocalTokenizer(folder="/tokenizer", sha256="0" * 64), eos_token="</s>", bos_token="</s>"
    )
    with expect_error(ValueError):
        input_tokenizer.check(config)


def described_apart(folder: Path, **changes: object) -> LocalTokenizer:
    """Write a tokenizer whose EOS is in its tokenizer_config.json only."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>"])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    tokens = {"256": {"content": "<s>", "special": True}, "257": {"content": "</s>", "special": True, **changes}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": tokens}))
    return local_tokenizer(str(folder))


def test_a_token_that_only_tokenizer_config_has_is_taken(tmp_path, run_alone):
    local = described_apart(tmp_path)
    config = InputTokenizerConfig(tokenizer=local, eos_token="</s>", bos_token="<s>")
    taken = run_alone(input_tokenizer, config, "tokenizer")
    assert (taken.result.bos_token_id, taken.result.eos_token_id, taken.result.vocab_size) == (256, 257, 258)
    tokenizer = Tokenizer.from_file(taken.join(taken.result.tokenizer))
    assert tokenizer.get_added_tokens_decoder()[257].special
    assert tokenizer.encode("a</s>", add_special_tokens=False).ids[-1] == 257
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ bos_token }}"}))
    without = local_tokenizer(str(tmp_path))
    assert without.added_tokens == () and without.sha256 == local.sha256


@pytest.mark.parametrize("decoder", ['{"999": {"content": "</s>"}}', '{"257": "</s>"}'], ids=["gap", "no token"])
def test_tokens_of_tokenizer_config_without_a_right_id_are_refused(tmp_path, run_alone, decoder):
    described_apart(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(f'{{"added_tokens_decoder": {decoder}}}')
    with expect_error(UserError):
        config = InputTokenizerConfig(tokenizer=local_tokenizer(str(tmp_path)), eos_token="</s>", bos_token=None)
        run_alone(input_tokenizer, config, "tokenizer")
