"""Bits per byte are one sum over another, of text alone, on the same windows each time."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import TokenCacheWriter
from runtime.evaluation.bits_per_byte import (
    PADDING_SEGMENT,
    BitsPerByte,
    BitsPerByteError,
    Windows,
    bits_per_byte,
    held_out_windows,
    macro_average,
)
from runtime.model.computation import whole
from runtime.model.config import LLAMA3_ROPE, LlamaConfig
from runtime.model.llama import Llama
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.eval_step import TokenLosses, build_eval_step

BOS, EOS, VOCAB_SIZE, SEQUENCE = 0, 1, 64, 16
# Ids 2... stand for 0 to 3 bytes of text: some for a part of a character, one (2) for no text at all.
TOKEN_BYTES = np.array([0, 0, *(index % 4 for index in range(VOCAB_SIZE - 2))], np.int32)
CONFIG = LlamaConfig(
    vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=SEQUENCE,
)  # fmt: skip


def write_cache(path, num_documents, seed=0):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(2, VOCAB_SIZE, int(rng.integers(1, 40))) for _ in range(num_documents)]
    token_format = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=EOS, bos_token_id=BOS, tokenizer_digest="0" * 64)
    with TokenCacheWriter(str(path), token_format, TOKEN_BYTES) as writer:
        writer.add(documents, num_bytes=1)
    return TokenCache.open(str(path))


@functools.cache
def eval_step():
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    return build_eval_step(
        CONFIG, LLAMA3_ROPE, mesh, attention_kernel="reference", loss_kernel="chunked", compute_dtype="float32"
    )


def model():
    return jax.tree.map(lambda leaf: 5 * leaf, Llama.init(CONFIG, key=jax.random.key(0)))


def plainly(params, windows):
    """The definition, token by token, from whole logits."""
    frequencies = inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim)

    @jax.jit
    def whole_logits(params, windows):
        return params.logits(*windows, frequencies, config=CONFIG, computation=whole(jnp.float32))

    logits = whole_logits(params, windows)
    log_shares = np.asarray(jax.nn.log_softmax(logits), np.float64)
    bits, num_bytes, num_tokens = 0.0, 0, 0
    for window, (tokens, segment_ids) in enumerate(zip(*windows, strict=True)):
        for i in range(SEQUENCE - 1):
            target = tokens[i + 1]
            if segment_ids[i] == segment_ids[i + 1] != PADDING_SEGMENT and TOKEN_BYTES[target]:
                bits -= log_shares[window, i, target] / math.log(2)
                num_bytes += int(TOKEN_BYTES[target])
                num_tokens += 1
    return bits, num_bytes, num_tokens


def test_the_sums_are_those_of_the_definition_token_by_token(tmp_path):
    windows = held_out_windows(write_cache(tmp_path, 40), sequence_length=SEQUENCE, max_tokens=10_000)
    found = bits_per_byte(eval_step(), model(), windows, TOKEN_BYTES, windows_per_batch=8)
    bits, num_bytes, num_tokens = plainly(model(), windows)
    assert (found.num_bytes, found.num_tokens) == (num_bytes, num_tokens)
    assert found.bits == pytest.approx(bits, rel=1e-5)
    assert found.bits_per_byte == found.bits / found.num_bytes


def test_a_model_that_knows_nothing_needs_the_logarithm_of_the_vocabulary_for_each_token(tmp_path):
    windows = held_out_windows(write_cache(tmp_path, 40), sequence_length=SEQUENCE, max_tokens=10_000)
    nothing = jax.tree.map(jnp.zeros_like, model())
    found = bits_per_byte(eval_step(), nothing, windows, TOKEN_BYTES, windows_per_batch=8)
    assert found.bits == pytest.approx(found.num_tokens * math.log2(VOCAB_SIZE), rel=1e-6)


@pytest.mark.parametrize("windows_per_batch", [1, 3, 64])
def test_the_number_does_not_depend_on_how_windows_are_batched(tmp_path, windows_per_batch):
    windows = held_out_windows(write_cache(tmp_path, 40), sequence_length=SEQUENCE, max_tokens=10_000)
    expected = bits_per_byte(eval_step(), model(), windows, TOKEN_BYTES, windows_per_batch=8)
    found = bits_per_byte(eval_step(), model(), windows, TOKEN_BYTES, windows_per_batch=windows_per_batch)
    assert found[1:] == expected[1:]
    assert found.bits == pytest.approx(expected.bits, rel=1e-6)


def test_twice_the_same_is_bit_for_bit_the_same(tmp_path):
    windows = held_out_windows(write_cache(tmp_path, 40), sequence_length=SEQUENCE, max_tokens=200)
    first, second = (bits_per_byte(eval_step(), model(), windows, TOKEN_BYTES, windows_per_batch=8) for _ in range(2))
    assert first == second


def test_special_tokens_add_neither_bits_nor_bytes():
    tokens = np.array([[BOS, 3, EOS, BOS, 4, 5, 2, EOS]], np.int32)
    segment_ids = np.array([[0, 0, 0, 1, 1, 1, 1, 1]], np.int32)

    def one_nat_everywhere(params, tokens, segment_ids):
        return TokenLosses(np.ones(tokens.shape), np.array([[True, True, False, True, True, True, True, False]]))

    found = bits_per_byte(one_nat_everywhere, None, Windows(tokens, segment_ids), TOKEN_BYTES, windows_per_batch=1)
    # Predicted with text: 3, 4 and 5; neither EOS, BOS nor 2, which stands for no bytes.
    assert found.num_tokens == 3
    assert found.num_bytes == sum(int(TOKEN_BYTES[token]) for token in (3, 4, 5))
    assert found.bits == pytest.approx(3 / math.log(2))


def test_what_the_model_says_at_padding_cannot_reach_the_number():
    tokens, segment_ids = np.full((3, SEQUENCE), 5, np.int32), np.zeros((3, SEQUENCE), np.int32)
    segment_ids[2, 7:] = PADDING_SEGMENT

    def nan_at_padding(params, tokens, segment_ids):
        is_same = segment_ids == np.roll(segment_ids, -1, axis=1)
        has_target = is_same & (np.arange(SEQUENCE) < SEQUENCE - 1)
        return TokenLosses(np.where(segment_ids == PADDING_SEGMENT, np.nan, 1.0), has_target)

    found = bits_per_byte(nan_at_padding, None, Windows(tokens, segment_ids), TOKEN_BYTES, windows_per_batch=8)
    assert found.num_tokens == 2 * (SEQUENCE - 1) + 6
    assert found.bits == pytest.approx(found.num_tokens / math.log(2))


def test_with_room_enough_every_token_lies_in_exactly_one_window(tmp_path):
    cache = write_cache(tmp_path, 33)
    assert cache.num_tokens % SEQUENCE
    windows = held_out_windows(cache, sequence_length=SEQUENCE, max_tokens=10**9)
    is_text = windows.segment_ids != PADDING_SEGMENT
    np.testing.assert_array_equal(windows.tokens[is_text], cache.read(0, cache.num_tokens))


def test_with_less_room_windows_are_spread_over_the_whole_cache(tmp_path):
    cache = write_cache(tmp_path, 400)
    windows = held_out_windows(cache, sequence_length=SEQUENCE, max_tokens=10 * SEQUENCE + 3)
    assert len(windows.tokens) == 10
    num_there = math.ceil(cache.num_tokens / SEQUENCE)
    starts = [(i * num_there // 10) * SEQUENCE for i in range(10)]
    for row, start in zip(windows.tokens, starts, strict=True):
        np.testing.assert_array_equal(row, cache.read(start, SEQUENCE))
    assert starts[-1] > 0.85 * cache.num_tokens


def test_a_domain_shorter_than_one_window_still_gives_a_number(tmp_path):
    cache = write_cache(tmp_path, 1, seed=3)
    windows = held_out_windows(cache, sequence_length=1024, max_tokens=1024)
    assert windows.tokens.shape == (1, 1024)
    assert (windows.segment_ids != PADDING_SEGMENT).sum() == cache.num_tokens


def test_all_domains_and_both_sets_of_weights_are_asked_with_one_shape_and_so_share_one_program(tmp_path):
    step, shapes = eval_step(), set()

    def watched(params, tokens, segment_ids):
        shapes.add((tokens.shape, tokens.dtype, segment_ids.shape, segment_ids.dtype))
        return step(params, tokens, segment_ids)

    for name, num_documents in (("a", 5), ("b", 50), ("c", 1)):
        windows = held_out_windows(
            write_cache(tmp_path / name, num_documents), sequence_length=SEQUENCE, max_tokens=400
        )
        for params in (model(), jax.tree.map(jnp.zeros_like, model())):
            bits_per_byte(watched, params, windows, TOKEN_BYTES, windows_per_batch=4)
    assert len(shapes) == 1


def test_a_diverged_model_is_an_error_and_not_a_number(tmp_path):
    windows = held_out_windows(write_cache(tmp_path, 5), sequence_length=SEQUENCE, max_tokens=400)
    diverged = jax.tree.map(lambda leaf: leaf * jnp.nan, model())
    with pytest.raises(BitsPerByteError, match=r"not finite: the model has diverged"):
        bits_per_byte(eval_step(), diverged, windows, TOKEN_BYTES, windows_per_batch=4)


def test_too_few_tokens_for_one_window_are_refused_with_the_field_to_change(tmp_path):
    with pytest.raises(BitsPerByteError, match=r"max_tokens_per_domain is 15, less than one window of 16 tokens"):
        held_out_windows(write_cache(tmp_path, 5), sequence_length=SEQUENCE, max_tokens=15)


def test_text_without_a_predicted_byte_is_refused():
    tokens = np.array([[BOS, EOS]], np.int32)
    windows = Windows(tokens, np.zeros((1, 2), np.int32))
    with pytest.raises(BitsPerByteError, match=r"no predicted byte of text; hold out a larger share"):
        bits_per_byte(
            lambda *_: TokenLosses(np.ones((1, 2)), np.array([[True, False]])),
            None, windows, TOKEN_BYTES, windows_per_batch=1,
        )  # fmt: skip


def test_pooled_domains_weigh_by_bytes_and_the_macro_average_does_not():
    short, long = BitsPerByte(20.0, 10, 4), BitsPerByte(1000.0, 1000, 300)
    assert macro_average({"short": short.bits_per_byte, "long": long.bits_per_byte}) == 1.5
