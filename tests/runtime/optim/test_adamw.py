"""AdamW on shards is optax's and torch's AdamW; the tensors that decay are the recipe's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama, LlamaParams
from runtime.model.model import UnknownTensorError
from runtime.optim.adamw import clip_by_norm, decay_mask
from runtime.optim.optimizer import ADAMW, Muon, Optimizer
from tests.catalogue import expect_error
from tests.deferred_import import torch
from tests.runtime.model.toy import Toy, ToyConfig

CONFIG = LlamaConfig(
    vocab_size=12,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=16,
    use_qk_norm=True,
)
NUMBERS = {"learning_rate": 3e-3, "weight_decay": 0.1, "b1": 0.9, "b2": 0.95, "eps": 1e-8}
STEPS = 4


def gradients_of(params: LlamaParams, step: int) -> LlamaParams:
    rng = np.random.default_rng(step)
    # Exact zeros too: eps decides what they do.
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * rng.integers(0, 2, leaf.shape), jnp.float32), params
    )


@functools.cache
def initial() -> LlamaParams:
    return Llama(CONFIG).init(jax.random.key(0))


@functools.cache
def ours() -> tuple[LlamaParams, LlamaParams]:
    start = params = initial()
    transformation = ADAMW.build(Llama(CONFIG))
    state = transformation.init(params)
    numbers = {name: jnp.float32(value) for name, value in NUMBERS.items()} | {"max_norm": jnp.float32(jnp.inf)}
    update = jax.jit(functools.partial(transformation.update, grad_norm=jnp.float32(1), **numbers))
    for step in range(STEPS):
        updates, state = update(gradients_of(params, step), state, params)
        params = optax.apply_updates(params, updates)
    return start, params


def assert_close(got: LlamaParams, expected: list) -> None:
    for leaf, wanted in zip(jax.tree.leaves(got), expected, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", [ADAMW, Muon()])
def test_an_optimizer_says_how_large_its_state_is_and_starts_at_zero(optimizer: Optimizer) -> None:
    state = optimizer.build(Llama(CONFIG)).init(initial())
    sizes = [leaf.size for leaf in jax.tree.leaves(state)]
    assert sum(size for size in sizes if size > 1) == optimizer.state_size(CONFIG)
    assert not any(map(np.any, jax.tree.leaves(state)))


def test_the_parameters_are_those_of_optax() -> None:
    start, params = ours()
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        optimizer = optax.adamw(**NUMBERS, mask=decay_mask(Llama(CONFIG), start))
        theirs, state, update = start, optimizer.init(start), jax.jit(optimizer.update)
        for step in range(STEPS):
            updates, state = update(gradients_of(theirs, step), state, theirs)
            theirs = optax.apply_updates(theirs, updates)
    assert_close(params, jax.tree.leaves(theirs))


def test_the_parameters_are_those_of_torch() -> None:
    start, params = ours()
    leaves = [torch.nn.Parameter(torch.tensor(np.array(leaf))) for leaf in jax.tree.leaves(start)]
    mask = jax.tree.leaves(decay_mask(Llama(CONFIG), start))
    groups = [
        {
            "params": [leaf for leaf, decayed in zip(leaves, mask, strict=True) if decayed == wanted],
            "weight_decay": decay,
        }
        for wanted, decay in ((True, NUMBERS["weight_decay"]), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=NUMBERS["learning_rate"], betas=(NUMBERS["b1"], NUMBERS["b2"]), eps=NUMBERS["eps"]
    )
    for step in range(STEPS):
        for leaf, gradient in zip(leaves, jax.tree.leaves(gradients_of(start, step)), strict=True):
            leaf.grad = torch.tensor(np.array(gradient))
        optimizer.step()
    assert_close(params, [leaf.detach().numpy() for leaf in leaves])


def test_matrices_and_the_head_decay_and_embeddings_and_norms_do_not() -> None:
    mask = decay_mask(Llama(CONFIG), initial())
    layers = mask.layers
    assert mask.lm_head
    assert all((layers.q_proj, layers.k_proj, layers.v_proj, layers.o_proj))
    assert all((layers.gate_proj, layers.up_proj, layers.down_proj))
    assert not any((mask.embed_tokens, mask.norm, layers.q_norm, layers.k_norm))
    assert not any((layers.input_layernorm, layers.post_attention_layernorm))


def test_a_tensor_that_the_model_does_not_list_is_refused() -> None:
    model = Toy(ToyConfig(is_listed=False))
    params = model.init(jax.random.key(0))
    with expect_error(UnknownTensorError) as caught:
        decay_mask(model, params)
    assert caught.value.tensor == "scale"


def test_clipping_is_that_of_optax_and_leaves_small_gradients_bitwise_alone() -> None:
    gradients = gradients_of(initial(), 0)
    norm = optax.tree.norm(gradients)
    clipped = clip_by_norm(gradients, norm, jnp.float32(1.0))
    expected, _ = optax.clip_by_global_norm(1.0).update(gradients, optax.EmptyState())
    assert_close(clipped, jax.tree.leaves(expected))
    for limit in (norm * 1.01, jnp.float32(jnp.inf)):
        kept = clip_by_norm(gradients, norm, limit)
        assert all(map(np.array_equal, jax.tree.leaves(kept), jax.tree.leaves(gradients)))
