"""The rotary embedding is the one of transformers: frequencies, scaling and the pairs that turn."""

import jax.numpy as jnp
import numpy as np
import pytest

from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope
from runtime.model.rotary import inverse_frequencies, rotate, rotation
from tests.deferred_import import DeferredModule, torch, transformers

modeling_llama = DeferredModule("transformers.models.llama.modeling_llama")


def theirs(rope: Rope, head_dim: int) -> "modeling_llama.LlamaRotaryEmbedding":
    parameters: dict = {"rope_type": "default", "rope_theta": rope.rope_theta}
    if rope.scaling is not None:
        parameters |= {
            "rope_type": "llama3",
            "factor": rope.scaling.factor,
            "low_freq_factor": rope.scaling.low_freq_factor,
            "high_freq_factor": rope.scaling.high_freq_factor,
            "original_max_position_embeddings": rope.scaling.original_max_position_embeddings,
        }
    config = transformers.LlamaConfig(head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=131_072)
    return modeling_llama.LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("rope", [LLAMA2_ROPE, LLAMA3_ROPE])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_the_frequencies_are_those_of_transformers_to_the_last_bits(rope: Rope, head_dim: int) -> None:
    expected = theirs(rope, head_dim).inv_freq.numpy()
    np.testing.assert_allclose(inverse_frequencies(rope, head_dim), expected, rtol=5e-7)


@pytest.mark.parametrize("rope", [LLAMA2_ROPE, LLAMA3_ROPE])
def test_a_query_is_turned_as_transformers_turns_it(rope: Rope) -> None:
    query = np.random.default_rng(0).normal(size=(2, 48, 3, 32)).astype(np.float32)
    cosine, sine = theirs(rope, 32)(torch.zeros(1), torch.arange(48)[None])
    turn = modeling_llama.apply_rotary_pos_emb
    expected, _ = turn(torch.tensor(query), torch.tensor(query), cosine, sine, unsqueeze_dim=2)
    ours = rotate(jnp.asarray(query), *rotation(inverse_frequencies(rope, 32), jnp.arange(48)))
    np.testing.assert_allclose(ours, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("scale", [1.0, 128**-0.5])
@pytest.mark.parametrize("rope", [LLAMA2_ROPE, LLAMA3_ROPE])
def test_bfloat16_heads_far_into_a_row_are_turned_in_float32_and_rounded_once(rope: Rope, scale: float) -> None:
    head_dim, num_positions, last = 128, 8192, 512
    frequencies = inverse_frequencies(rope, head_dim)
    heads = jnp.asarray(np.random.default_rng(0).normal(size=(1, num_positions, 1, head_dim)), jnp.bfloat16)
    ours = rotate(heads, *rotation(frequencies, jnp.arange(num_positions)), scale=scale)
    assert ours.dtype == jnp.bfloat16
    far = slice(num_positions - last, None)
    angles = np.arange(num_positions, dtype=np.float64)[far, None, None] * frequencies.astype(np.float64)
    first, second = np.split(np.asarray(heads[0, far], np.float64), 2, axis=-1)
    exact = scale * np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], axis=-1
    )
    # Half a unit in the last of eight places, and what an angle below 8192 loses by being one float32.
    rounded_once = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 8)
    of_the_angle = scale * 2.0**-12 * np.tile(np.hypot(first, second), 2)
    error = np.abs(np.asarray(ours[0, far], np.float64) - exact)
    assert (error <= rounded_once + 1.01 * of_the_angle).all()
