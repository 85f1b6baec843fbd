"""Hugging Face export and import: the same model on both sides, and the same bytes each time."""

import dataclasses
import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from tokenizers import Tokenizer

from pipelines.scales import EIGHT_B, LAPTOP
from runtime.interop.huggingface import SpecialTokens, read_model, write_model, write_tokenizer
from runtime.model.architectures import config_from_huggingface
from runtime.model.computation import whole
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope, RopeScaling
from runtime.model.huggingface import InteropError
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.huggingface import to_config_json
from runtime.model.llama.model import LlamaParams
from runtime.model.model import logits
from runtime.model.rotary import inverse_frequencies
from tests.catalogue import expect_error
from tests.deferred_import import torch, transformers
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

# Short enough an original length that all three kinds of frequency occur within 128 positions.
SCALED_ROPE = Rope(
    rope_theta=10_000.0,
    scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
)
SPECIAL = SpecialTokens(eos_token_id=0, bos_token_id=None)


def our_logits(params: LlamaParams, config: LlamaConfig, rope: Rope, tokens: np.ndarray) -> np.ndarray:
    frequencies = inverse_frequencies(rope, config.head_dim)
    segment_ids = jnp.zeros(tokens.shape, jnp.int32)
    computation = whole(jnp.float32)
    return np.asarray(
        logits(config.build(), params, jnp.asarray(tokens), segment_ids, frequencies, computation=computation)
    )


def their_logits(folder: Path, tokens: np.ndarray) -> np.ndarray:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return theirs(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()


@pytest.mark.parametrize("rope", [LLAMA2_ROPE, LLAMA3_ROPE, SCALED_ROPE], ids=["plain", "llama3", "llama3-short"])
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("use_qk_norm", [False, True], ids=["llama", "qwen3"])
def test_transformers_computes_the_same_logits_from_the_exported_folder(tmp_path, rope, is_tied, use_qk_norm):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=is_tied, use_qk_norm=use_qk_norm)
    params = model(config)
    write_model(str(tmp_path), params, config, rope, SPECIAL, dtype="float32")
    tokens = np.asarray(jax.random.randint(jax.random.key(2), (2, 128), 0, config.vocab_size))
    ours, theirs = our_logits(params, config, rope, tokens), their_logits(tmp_path, tokens)
    assert np.abs(theirs).max() > 1  # or agreement would be cheap
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize(
    ("max_length", "rope", "use_qk_norm"),
    [
        (LAPTOP.model.max_position_embeddings, LLAMA3_ROPE, False),
        (EIGHT_B.model.max_position_embeddings, LLAMA3_ROPE, False),
        (4096, LLAMA2_ROPE, False),
        (131_072, LLAMA3_ROPE, False),
        (4096, LLAMA3_ROPE, True),
    ],
    ids=["laptop", "8b", "plain", "long", "qwen3"],
)
def test_transformers_loads_and_generates_without_a_warning(
    tmp_path, max_length, rope, use_qk_norm, caplog, monkeypatch
):
    config = dataclasses.replace(CONFIG, max_position_embeddings=max_length, use_qk_norm=use_qk_norm)
    params = model(config)
    write_model(str(tmp_path), params, config, rope, SPECIAL, dtype="float32")
    source = tokenizer_file(tmp_path / "tokenizer.json")
    write_tokenizer(str(tmp_path), str(source), SPECIAL, vocab_size=CONFIG.vocab_size, max_length=max_length)
    monkeypatch.setattr(transformers.utils.logging.get_logger("transformers"), "propagate", True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.generate(**tokenizer("the quick brown", return_tensors="pt"), max_new_tokens=2)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert theirs.config.max_position_embeddings == max_length  # the true one, whatever the scaling was made for
    np.testing.assert_allclose(
        theirs.model.rotary_emb.inv_freq.numpy(), inverse_frequencies(rope, config.head_dim), rtol=1e-6
    )
    tokens = np.asarray(jax.random.randint(jax.random.key(2), (2, 128), 0, config.vocab_size))
    np.testing.assert_allclose(our_logits(params, config, rope, tokens), their_logits(tmp_path, tokens), atol=1e-4)


def test_a_scaling_that_is_lost_would_be_seen_in_the_logits(tmp_path):
    params = model()
    write_model(str(tmp_path), params, CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")
    tokens = np.asarray(jax.random.randint(jax.random.key(2), (2, 128), 0, CONFIG.vocab_size))
    ours = our_logits(params, CONFIG, SCALED_ROPE, tokens)
    assert np.abs(ours - their_logits(tmp_path, tokens)).max() > 1e-2


@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("use_qk_norm", [False, True], ids=["llama", "qwen3"])
@pytest.mark.parametrize("max_shard_size_in_bytes", [20_000, 10**9], ids=["sharded", "whole"])
def test_an_exported_model_is_read_back_bit_for_bit(tmp_path, is_tied, max_shard_size_in_bytes, use_qk_norm):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=is_tied, use_qk_norm=use_qk_norm)
    params = model(config)
    folder = str(tmp_path)
    files = write_model(
        folder, params, config, LLAMA3_ROPE, SPECIAL, dtype="float32", max_shard_size_in_bytes=max_shard_size_in_bytes
    )
    write_tokenizer(folder, str(tokenizer_file(tmp_path / "t.json")), SPECIAL, vocab_size=320, max_length=256)
    assert set(files) == {path.name for path in tmp_path.iterdir()} - {
        "t.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    read = read_model(folder)
    assert (read.config, read.special_tokens) == (config, SPECIAL)
    # Written for a shorter context, in other numbers that mean the same.
    frequencies = (inverse_frequencies(rope, config.head_dim) for rope in (read.rope, LLAMA3_ROPE))
    np.testing.assert_array_equal(*frequencies)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, read.params))


def test_shards_hold_what_the_index_says_and_transformers_reads_them(tmp_path):
    params = model()
    write_model(str(tmp_path), params, CONFIG, LLAMA3_ROPE, SPECIAL, dtype="float32", max_shard_size_in_bytes=50_000)
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * CONFIG.num_parameters
    held = [safetensors.numpy.load_file(tmp_path / shard) for shard in shards]
    assert all(len(of) == 1 or sum(value.nbytes for value in of.values()) <= 50_000 for of in held)
    tokens = np.arange(64)[None]
    np.testing.assert_allclose(
        our_logits(params, CONFIG, LLAMA3_ROPE, tokens), their_logits(tmp_path, tokens), atol=1e-4
    )


def test_a_tensor_that_stands_in_two_files_is_refused_and_of_one_file_beside_an_index_the_file_is_read(tmp_path):
    first, second = model(), jax.tree.map(lambda leaf: leaf / 2, model())
    tokenizer_file(tmp_path / "tokenizer.json")
    folder, limit = str(tmp_path), 50_000
    write_model(folder, first, CONFIG, LLAMA3_ROPE, SPECIAL, dtype="float32", max_shard_size_in_bytes=limit)
    twice = tmp_path / "model-00002.safetensors"
    twice.write_bytes((tmp_path / "model-00001-of-00009.safetensors").read_bytes())
    index = tmp_path / "model.safetensors.index.json"
    named = json.loads(index.read_text())
    index.write_text(json.dumps(named | {"weight_map": named["weight_map"] | {"a": twice.name}}))
    with expect_error(InteropError):
        read_model(folder)
    write_model(folder, second, CONFIG, LLAMA3_ROPE, SPECIAL, dtype="float32")
    read = read_model(folder).params
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    np.testing.assert_array_equal(np.asarray(read.norm), np.asarray(second.norm))
    np.testing.assert_array_equal(np.asarray(read.norm), theirs.model.norm.weight.detach().numpy())


@pytest.mark.parametrize("use_qk_norm", [False, True], ids=["llama", "qwen3"])
def test_a_model_saved_by_transformers_is_read(tmp_path, use_qk_norm):
    config = dataclasses.replace(CONFIG, use_qk_norm=use_qk_norm)
    params = model(config)
    write_model(str(tmp_path / "ours"), params, config, SCALED_ROPE, SPECIAL, dtype="float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer_file(tmp_path / "theirs" / "tokenizer.json")
    read = read_model(str(tmp_path / "theirs"))
    assert (read.config, read.rope) == (config, SCALED_ROPE)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, read.params))


def test_a_shared_head_that_is_stored_twice_and_the_first_of_several_ends_of_text_are_read(tmp_path):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=True)
    write_model(str(tmp_path), model(config), config, LLAMA2_ROPE, SPECIAL, dtype="float32")
    tokenizer_file(tmp_path / "tokenizer.json")
    stored = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].copy()
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "eos_token_id": [7, 9]}))
    read = read_model(str(tmp_path))
    assert read.params.lm_head is None and read.special_tokens.eos_token_id == 7


def test_bfloat16_rounds_to_nearest_even_and_both_sides_read_it(tmp_path):
    params = model()
    write_model(str(tmp_path), params, CONFIG, LLAMA3_ROPE, SPECIAL, dtype="bfloat16")
    tokenizer_file(tmp_path / "tokenizer.json")
    read = read_model(str(tmp_path)).params
    expected = np.asarray(params.lm_head).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(read.lm_head), expected)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert theirs.dtype == torch.bfloat16
    np.testing.assert_array_equal(theirs.lm_head.weight.float().detach().numpy().T, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exporting_twice_gives_the_same_bytes(tmp_path, dtype):
    for name in ("first", "second"):
        write_model(str(tmp_path / name), model(), CONFIG, LLAMA3_ROPE, SPECIAL, dtype=dtype)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


@pytest.mark.parametrize("with_bos", [False, True], ids=["no-bos", "bos"])
def test_the_tokenizer_makes_a_round_trip_through_transformers(tmp_path, with_bos):
    source = tokenizer_file(tmp_path / "source.json", with_bos=with_bos)
    special = SpecialTokens(0, 1 if with_bos else None)
    folder = tmp_path / "export"
    write_model(str(folder), model(), CONFIG, LLAMA3_ROPE, special, dtype="float32")
    write_tokenizer(str(folder), str(source), special, vocab_size=CONFIG.vocab_size, max_length=256)
    ours, theirs = Tokenizer.from_file(str(source)), transformers.AutoTokenizer.from_pretrained(folder)
    for text in (
        "the quick brown fox", " leading space", "naïve café 日本語 🦊", "two  spaces , and ' quotes", "a\n\n\tb", "",
        "ends<|end_of_text|>", "don 't do n't",
    ):  # fmt: skip
        ids = ours.encode(text).ids
        assert theirs.encode(text) == ids
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False)
    assert (theirs.eos_token_id, theirs.bos_token_id) == special
    assert theirs.eos_token == "<|end_of_text|>"
    assert theirs.model_max_length == 256


def test_a_text_is_encoded_whole_and_alone_whatever_the_file_of_the_tokenizer_was_saved_with(tmp_path):
    plain = Tokenizer.from_file(str(tokenizer_file(tmp_path / "plain.json", with_bos=False)))
    expected = plain.encode("the quick fox").ids
    plain.enable_padding(length=64)
    plain.enable_truncation(2)
    plain.save(str(tmp_path / "padded.json"))
    special = SpecialTokens(eos_token_id=0, bos_token_id=None)
    write_model(str(tmp_path / "export"), model(), CONFIG, LLAMA3_ROPE, special, dtype="float32")
    source = str(tmp_path / "padded.json")
    write_tokenizer(str(tmp_path / "export"), source, special, vocab_size=CONFIG.vocab_size, max_length=256)
    assert read_model(str(tmp_path / "export")).tokenizer.encode("the quick fox").ids == expected
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "export").encode("the quick fox") == expected
    # A foreign folder may have such a file.
    (tmp_path / "export/tokenizer.json").write_bytes((tmp_path / "padded.json").read_bytes())
    assert read_model(str(tmp_path / "export")).tokenizer.encode("the quick fox").ids == expected
    write_tokenizer(str(tmp_path / "export"), source, special, vocab_size=CONFIG.vocab_size, max_length=256)
    # Both ignore these keys of the file; other readers do not.
    assert Tokenizer.from_file(str(tmp_path / "export/tokenizer.json")).encode("the quick fox").ids == expected


def test_the_generation_config_has_the_special_tokens_and_pads_with_eos(tmp_path):
    write_model(str(tmp_path), model(), CONFIG, LLAMA3_ROPE, SpecialTokens(7, 9), dtype="float32")
    expected = {"bos_token_id": 9, "do_sample": False, "eos_token_id": 7, "pad_token_id": 7}
    assert json.loads((tmp_path / "generation_config.json").read_text()) == expected


def test_a_model_trained_with_bos_is_given_one_by_both_libraries(tmp_path):
    bare = tokenizer_file(tmp_path / "bare.json", with_bos=False)
    special = SpecialTokens(eos_token_id=0, bos_token_id=1)
    write_model(str(tmp_path / "export"), model(), CONFIG, LLAMA3_ROPE, special, dtype="float32")
    write_tokenizer(str(tmp_path / "export"), str(bare), special, vocab_size=CONFIG.vocab_size, max_length=256)
    expected = [1, *Tokenizer.from_file(str(bare)).encode("the fox").ids]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "export").encode("the fox") == expected
    read = read_model(str(tmp_path / "export"))
    assert read.special_tokens == special
    assert read.tokenizer.encode("the fox").ids == expected
    assert read.tokenizer.encode("the fox", "the fox").ids == [*expected, *expected]


def test_a_tokenizer_that_knows_its_bos_is_copied_byte_for_byte(tmp_path):
    for with_bos, special in ((True, SpecialTokens(0, 1)), (False, SPECIAL)):
        source = tokenizer_file(tmp_path / "source.json", with_bos=with_bos)
        write_tokenizer(str(tmp_path), str(source), special, vocab_size=CONFIG.vocab_size, max_length=256)
        assert (tmp_path / "tokenizer.json").read_bytes() == source.read_bytes()


def test_a_tokenizer_that_adds_what_the_model_never_saw_is_refused(tmp_path):
    source = tokenizer_file(tmp_path / "source.json", with_bos=True)
    with expect_error(InteropError):
        write_tokenizer(str(tmp_path), str(source), SPECIAL, vocab_size=CONFIG.vocab_size, max_length=256)


def test_generation_stops_at_the_end_of_text_token(tmp_path):
    special = SpecialTokens(eos_token_id=7, bos_token_id=None)
    write_model(str(tmp_path), model(), CONFIG, LLAMA3_ROPE, special, dtype="float32")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert theirs.generation_config.eos_token_id == 7 and theirs.config.eos_token_id == 7
    assert theirs.generation_config.do_sample is False


def test_query_and_key_norms_that_are_lost_would_be_seen_in_the_logits(tmp_path):
    config = dataclasses.replace(CONFIG, use_qk_norm=True)
    params = model(config)
    lost = dataclasses.replace(params, layers=dataclasses.replace(params.layers, q_norm=None, k_norm=None))
    write_model(str(tmp_path), params, config, LLAMA2_ROPE, SPECIAL, dtype="float32")
    tokens = np.asarray(jax.random.randint(jax.random.key(2), (2, 64), 0, config.vocab_size))
    assert np.abs(our_logits(lost, CONFIG, LLAMA2_ROPE, tokens) - their_logits(tmp_path, tokens)).max() > 1e-1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_model_is_not_exported(tmp_path, bad):
    params = model()
    params = dataclasses.replace(params, norm=params.norm.at[3].set(bad))
    with expect_error(InteropError):
        write_model(str(tmp_path), params, CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    source = tokenizer_file(tmp_path / "source.json")
    with expect_error(InteropError):
        write_tokenizer(str(tmp_path), str(source), SPECIAL, vocab_size=100, max_length=256)
    num_ids = Tokenizer.from_file(str(source)).get_vocab_size()
    write_tokenizer(str(tmp_path), str(source), SPECIAL, vocab_size=num_ids, max_length=256)  # one that just fits


def test_a_tokenizer_with_an_id_behind_the_last_row_is_refused_however_few_tokens_it_has(tmp_path):
    source = tokenizer_file(tmp_path / "source.json")
    document = json.loads(source.read_text())
    vocabulary = document["model"]["vocab"]
    (last,) = (token for token, number in vocabulary.items() if number == len(vocabulary) - 1)
    source.write_text(json.dumps({**document, "model": {**document["model"], "vocab": {**vocabulary, last: 400}}}))
    assert Tokenizer.from_file(str(source)).get_vocab_size() == len(vocabulary) <= 320
    with expect_error(InteropError):
        write_tokenizer(str(tmp_path), str(source), SPECIAL, vocab_size=320, max_length=256)


def test_an_end_of_text_id_without_a_token_is_refused(tmp_path):
    source = tokenizer_file(tmp_path / "source.json")
    with expect_error(InteropError):
        write_tokenizer(str(tmp_path), str(source), SpecialTokens(9999, None), vocab_size=10_000, max_length=256)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral"},
        {"model_type": "qwen3", "use_sliding_window": True},
        {"model_type": "qwen3", "head_dim": None, "num_key_value_heads": None},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"pretraining_tp": 2},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
        {"intermediate_size": None},
        {"hidden_size": "48"},
        {"tie_word_embeddings": 1},
        {"head_dim": 15},
        {"rope_theta": None},
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_a_config_that_is_not_our_llama_is_refused(change):
    document = to_config_json(CONFIG, LLAMA2_ROPE, eos_token_id=0, bos_token_id=None, dtype="float32")
    with expect_error(InteropError):
        config_from_huggingface({**document, **change}, "c.json")


def test_a_scaling_is_read_under_the_key_of_older_files_too():
    document = to_config_json(CONFIG, SCALED_ROPE, eos_token_id=0, bos_token_id=None, dtype="float32")
    scaling = document["rope_scaling"]
    older = {"type": scaling["rope_type"]} | {name: scaling[name] for name in scaling if name != "rope_type"}
    assert config_from_huggingface({**document, "rope_scaling": older}, "c.json") == (CONFIG, SCALED_ROPE)


def test_a_config_without_an_end_of_text_is_refused(tmp_path):
    write_model(str(tmp_path), model(), CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")
    tokenizer_file(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "eos_token_id": None}))
    (tmp_path / "generation_config.json").unlink()
    with expect_error(InteropError):
        read_model(str(tmp_path))


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a model whose EOS is 0 and BOS is 1."""
    write_model(str(tmp_path), model(), CONFIG, LLAMA2_ROPE, SpecialTokens(0, 1), dtype="float32")
    tokenizer_file(tmp_path / "tokenizer.json")
    return tmp_path


@pytest.mark.parametrize(
    ("ids", "expected"), [([0, 7], (0, 7)), ([7, 9], (0, 7, 9)), (7, (0, 7)), (None, (0,))], ids=str
)
def test_the_tokens_that_end_a_text_are_those_of_the_generation_config(folder, ids, expected):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    read = read_model(str(folder))
    assert read.end_token_ids == expected and read.special_tokens == SpecialTokens(0, 1)


def test_without_an_end_of_text_in_the_config_the_generation_config_names_it(folder):
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "eos_token_id": None}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    read = read_model(str(folder))
    assert read.special_tokens.eos_token_id == 7 and read.end_token_ids == (7, 9)


@pytest.mark.parametrize("role", ["eos_token", "bos_token"])
def test_a_special_token_that_is_malformed_or_unknown_is_refused(folder, role):
    for token in ({"x": 1}, ["<s>"], 7, "<no token>", {"content": "<no token>"}):
        (folder / "tokenizer_config.json").write_text(json.dumps({role: token}))
        with expect_error(InteropError):
            read_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({role: None}))
    assert read_model(str(folder)).special_tokens == SpecialTokens(0, 1 if role == "eos_token" else None)


def test_an_id_that_is_no_number_is_refused(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ["</s>"]}))
    with expect_error(InteropError):
        read_model(str(folder))


def test_a_minimal_config_means_what_transformers_takes_it_to_mean():
    document = {
        "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 32,
    }  # fmt: skip
    config, rope = config_from_huggingface(document, "c.json")
    assert config_from_huggingface(document | {"initializer_range": None}, "c.json")[0] == config
    theirs = transformers.LlamaConfig(**document)
    assert config.num_key_value_heads == theirs.num_key_value_heads
    assert config.head_dim == theirs.head_dim
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert config.initialization.factor == theirs.initializer_range
    assert config.tie_word_embeddings is theirs.tie_word_embeddings is False
    assert rope.rope_theta == theirs.rope_parameters["rope_theta"]


def test_missing_foreign_and_misshapen_tensors_are_named(tmp_path):
    folder = str(tmp_path)
    tokenizer_file(tmp_path / "tokenizer.json")
    write_model(folder, model(), CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")
    written = json.loads((tmp_path / "config.json").read_text())
    for change, _message in (
        ({"num_hidden_layers": 4}, r"no tensor model\.layers\.3\.input_layernorm\.weight"),
        ({"num_hidden_layers": 2}, r"tensors that a Llama does not have: model\.layers\.2\."),
        ({"vocab_size": 300}, r"embed_tokens\.weight has shape \(320, 48\), config\.json says \(300, 48\)"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**written, **change}))
        with expect_error(InteropError):
            read_model(folder)


def test_rotary_frequencies_that_old_exports_carry_are_passed_over(tmp_path):
    tokenizer_file(tmp_path / "tokenizer.json")
    write_model(str(tmp_path), model(), CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")
    weights = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(weights)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    safetensors.numpy.save_file(tensors | {name: np.ones(8, np.float32)}, weights)
    read = read_model(str(tmp_path)).params
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), read, model()))


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", b"{"), ("tokenizer.json", b"\xff"), ("chat_template.jinja", b"\xff")],
    ids=["torn", "tokenizer", "template"],
)
def test_a_damaged_tokenizer_or_template_is_an_error_that_names_the_file(tmp_path, name, content):
    tokenizer_file(tmp_path / "tokenizer.json")
    write_model(str(tmp_path), model(), CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")
    (tmp_path / name).write_bytes(content)
    with expect_error(InteropError):
        read_model(str(tmp_path))


def torn(content: bytes, change: str) -> bytes:
    """Return the changed bytes of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    match change:
        case "cut":
            return content[: 8 + length + 1000]
        case "longer":
            return content + bytes(4)
        case "a header without an end":
            return (2**40).to_bytes(8, "little") + content[8:]
    entry = header["model.norm.weight"]
    begin, end = entry["data_offsets"]
    entry["data_offsets"] = [begin, end - 4] if change == "a value less" else [begin - 4, end]
    again = json.dumps(header).encode()
    return len(again).to_bytes(8, "little") + again + data


@pytest.mark.parametrize(
    "change",
    [
        "cut",
        "longer",
        "a header without an end",
        "a value less",
        "a value more",
    ],
)
def test_torn_weights_are_an_error_that_names_the_file(tmp_path, change):
    tokenizer_file(tmp_path / "tokenizer.json")
    write_model(str(tmp_path), model(), CONFIG, LLAMA2_ROPE, SPECIAL, dtype="float32")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(torn(weights.read_bytes(), change))
    with expect_error(InteropError):
        read_model(str(tmp_path))
