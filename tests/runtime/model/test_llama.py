"""The model is Llama: logits equal those of transformers on the same weights, and documents do not see each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.model import model
from runtime.model.computation import whole
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope
from runtime.model.initialization import Initialization
from runtime.model.layers import rms_norm
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama, LlamaParams
from runtime.model.rotary import inverse_frequencies
from runtime.platform.remat import Remat
from tests.deferred_import import torch, transformers

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    initialization=Initialization(factor=0.2),
)


def rope_parameters(rope: Rope) -> dict:
    if rope.scaling is None:
        return {"rope_type": "default", "rope_theta": rope.rope_theta}
    return {"rope_type": "llama3", "rope_theta": rope.rope_theta, **dataclasses.asdict(rope.scaling)}


def their_model(params: LlamaParams, config: LlamaConfig, rope: Rope) -> "torch.nn.Module":
    """Return the same weights in transformers; a model with QK-norm is a Qwen3, otherwise a Llama."""
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "head_dim max_position_embeddings rms_norm_eps tie_word_embeddings"
    )
    fields = {name: getattr(config, name) for name in names.split()} | {"rope_parameters": rope_parameters(rope)}
    fields["attn_implementation"] = "eager"
    architecture = "Qwen3" if config.use_qk_norm else "Llama"
    their_config = getattr(transformers, f"{architecture}Config")(**fields)
    theirs = getattr(transformers, f"{architecture}ForCausalLM")(their_config)
    state = {"model.embed_tokens.weight": params.embed_tokens, "model.norm.weight": params.norm}
    state["lm_head.weight"] = params.embed_tokens if params.lm_head is None else params.lm_head.T
    for index in range(config.num_hidden_layers):
        layer = jax.tree.map(lambda leaf: leaf[index], params.layers)  # noqa: B023
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            state[f"model.layers.{index}.self_attn.{name}.weight"] = getattr(layer, name).T
        for name in ("gate_proj", "up_proj", "down_proj"):
            state[f"model.layers.{index}.mlp.{name}.weight"] = getattr(layer, name).T
        for name in ("input_layernorm", "post_attention_layernorm"):
            state[f"model.layers.{index}.{name}.weight"] = getattr(layer, name)
        if config.use_qk_norm:
            for name in ("q_norm", "k_norm"):
                state[f"model.layers.{index}.self_attn.{name}.weight"] = getattr(layer, name)
    theirs.load_state_dict({name: torch.tensor(np.array(value)) for name, value in state.items()})
    return theirs.eval()


@functools.cache
def random_params(config: LlamaConfig) -> LlamaParams:
    """Random norms too: at one, a norm in the wrong place would not show."""
    params = Llama(config).init(jax.random.key(0))
    noise = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + np.float32(0.1) * noise.normal(size=leaf.shape).astype(np.float32), params)


def logits(
    params: LlamaParams, tokens: np.ndarray, segment_ids: np.ndarray, config: LlamaConfig, rope: Rope
) -> np.ndarray:
    frequencies = inverse_frequencies(rope, config.head_dim)
    computation = whole("float32")
    inputs = jnp.asarray(tokens), jnp.asarray(segment_ids), frequencies
    return np.asarray(
        jax.jit(lambda params: model.logits(Llama(config), params, *inputs, computation=computation))(params)
    )


@pytest.mark.parametrize(
    ("rope", "changes"),
    [(LLAMA2_ROPE, {}), (LLAMA3_ROPE, {"tie_word_embeddings": True}), (LLAMA3_ROPE, {"use_qk_norm": True})],
)
def test_logits_equal_those_of_transformers(rope: Rope, changes: dict) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    params = random_params(config)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, (2, 40), dtype=np.int32)
    with torch.no_grad():
        expected = their_model(params, config, rope)(torch.tensor(tokens, dtype=torch.int64)).logits.numpy()
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(logits(params, tokens, np.zeros_like(tokens), config, rope), expected, atol=1e-4)


def test_packed_documents_give_the_logits_they_give_alone() -> None:
    params = random_params(CONFIG)
    tokens = np.random.default_rng(3).integers(0, CONFIG.vocab_size, (1, 36), dtype=np.int32)
    lengths = (7, 20, 9)
    segment_ids = np.repeat(np.arange(3, dtype=np.int32), lengths)[None]
    packed = logits(params, tokens, segment_ids, CONFIG, LLAMA3_ROPE)
    for start, length in zip(np.cumsum((0, *lengths)), lengths, strict=False):
        alone = tokens[:, start : start + length]
        expected = logits(params, alone, np.zeros_like(alone), CONFIG, LLAMA3_ROPE)
        np.testing.assert_allclose(packed[:, start : start + length], expected, atol=1e-4)


def test_a_later_token_changes_nothing_before_it() -> None:
    params = random_params(CONFIG)
    tokens = np.random.default_rng(4).integers(0, CONFIG.vocab_size, (1, 20), dtype=np.int32)
    changed = tokens.copy()
    changed[0, 12] = (changed[0, 12] + 1) % CONFIG.vocab_size
    before, after = (logits(params, each, np.zeros_like(each), CONFIG, LLAMA2_ROPE)[0] for each in (tokens, changed))
    np.testing.assert_array_equal(before[:12], after[:12])
    assert not np.array_equal(before[12:], after[12:])


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"use_qk_norm": True}])
def test_the_parameters_are_as_many_as_the_config_says(changes: dict) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    shapes = jax.eval_shape(lambda: Llama(config).init(jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == config.num_parameters


def test_a_norm_of_bfloat16_is_rounded_once_at_its_end() -> None:
    values = jnp.asarray(300 * np.random.default_rng(6).normal(size=(64, 512)), jnp.bfloat16)
    normed = rms_norm(values, jnp.ones(512, jnp.bfloat16), 1e-5)
    wide = np.asarray(values, np.float64)
    expected = wide / np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + 1e-5)
    assert normed.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(normed, np.float64), expected, rtol=2**-8)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_rematerialisation_changes_no_gradient_beyond_rounding(remat: str) -> None:
    params = random_params(CONFIG)
    tokens = jnp.asarray(np.random.default_rng(5).integers(0, CONFIG.vocab_size, (2, 16), dtype=np.int32))
    frequencies = inverse_frequencies(LLAMA2_ROPE, CONFIG.head_dim)

    def gradient(remat: str) -> LlamaParams:
        computation = whole("float32", remat=remat)

        def total(params: LlamaParams) -> jax.Array:
            states = Llama(CONFIG).states(params, tokens, jnp.zeros_like(tokens), frequencies, computation=computation)
            return jnp.sum(jnp.sin(states.hidden))

        return jax.jit(jax.grad(total))(params)

    for got, expected in zip(jax.tree.leaves(gradient(remat)), jax.tree.leaves(gradient("none")), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "of_the_forward_pass"),
    [("splash", "pallas_call"), ("chunked", "reduce_max")],
)
def test_a_policy_that_keeps_products_keeps_attention_outputs(kernel: str, of_the_forward_pass: str) -> None:
    config = dataclasses.replace(CONFIG, hidden_size=128, head_dim=64, max_position_embeddings=128)
    shapes = jax.eval_shape(lambda: Llama(config).init(jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((1, 128), jnp.int32)
    frequencies = inverse_frequencies(LLAMA2_ROPE, 64)

    def count(remat: Remat) -> int:
        computation = whole("bfloat16", kernel, remat)

        def total(params: LlamaParams, tokens: jax.Array) -> jax.Array:
            states = Llama(config).states(params, tokens, jnp.zeros_like(tokens), frequencies, computation=computation)
            return jnp.sum(states.hidden)

        return str(jax.make_jaxpr(jax.grad(total))(shapes, tokens)).count(f"= {of_the_forward_pass}[")

    assert count("dots") == count("none") == count("full") - 1 >= 1
