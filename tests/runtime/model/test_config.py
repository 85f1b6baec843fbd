"""Shapes: published parameter counts, exactly."""

import dataclasses

import pytest

from runtime.model.config import LLAMA3_ROPE, Rope
from runtime.model.llama.config import LlamaConfig
from tests.catalogue import expect_error

LLAMA_31_8B = LlamaConfig(128_256, 4096, 14_336, 32, 32, 8, 128, 4096)
LLAMA_32_1B = LlamaConfig(128_256, 2048, 8192, 16, 32, 8, 64, 4096, tie_word_embeddings=True)


@pytest.mark.parametrize(("config", "count"), [(LLAMA_31_8B, 8_030_261_248), (LLAMA_32_1B, 1_235_814_400)])
def test_the_parameter_count_is_the_published_one(config, count):
    assert config.num_parameters == count


def test_training_flops_of_an_8b_token_are_about_six_a_parameter_and_causal_attention():
    # trainers.md counts 51.5 GFLOP a token at sequence 8,192 with causal attention.
    assert LLAMA_31_8B.flops_per_token(8192) / 1e9 == pytest.approx(51.5, rel=0.01)


@pytest.mark.parametrize(("field", "value"), [("hidden_size", "64"), ("num_hidden_layers", None)])
def test_a_value_that_is_not_a_number_is_refused_with_its_field(field, value):
    config = dataclasses.replace(LLAMA_32_1B)
    object.__setattr__(config, field, value)  # which the suite's own check of types would else refuse first
    with expect_error(ValueError):
        config.__post_init__()


def test_heads_that_do_not_divide_are_refused():
    with expect_error(ValueError):
        LlamaConfig(64, 16, 32, 1, 4, 3, 8, 32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0), ("hidden_size", 0), ("num_hidden_layers", -2), ("head_dim", 0), ("rms_norm_eps", 0.0),
        ("rms_norm_eps", float("nan")),
    ],
)  # fmt: skip
def test_a_model_of_nothing_is_refused(field, value):
    with expect_error(ValueError):
        dataclasses.replace(LLAMA_31_8B, **{field: value})


@pytest.mark.parametrize("theta", [0.0, 1.0, -2.0, float("inf"), float("nan")])
def test_a_base_of_wavelengths_that_gives_none_is_refused(theta):
    with expect_error(ValueError):
        Rope(rope_theta=theta)


@pytest.mark.parametrize(
    ("field", "value"), [("factor", 0.0), ("high_freq_factor", 1.0), ("original_max_position_embeddings", 0)]
)
def test_a_scaling_of_the_rotary_embedding_that_is_none_is_refused(field, value):
    with expect_error(ValueError):
        dataclasses.replace(LLAMA3_ROPE.scaling, **{field: value})
