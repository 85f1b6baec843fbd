"""The programs that compilers and benchmarks get: of the shapes they name, and with the values of the kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.cost.kernel_alone import (
    AttentionShape,
    LossShape,
    arguments_of,
    as_in_a_step,
    attention_with_gradients,
    loss_with_gradients,
)
from runtime.kernels.attention import attend
from runtime.parallel.mesh import MeshShape, make_mesh

ATTENTION_SHAPE = AttentionShape(sequences=2, tokens=16, heads=4, kv_heads=2, head_dim=8)
LOSS_SHAPE = LossShape(tokens=24, hidden_size=8, vocab_size=32)


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape(), jax.devices()[:1])


def filled(described: list[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [
        jnp.asarray(rng.integers(0, 2, one.shape) if one.dtype == jnp.int32 else rng.normal(size=one.shape), one.dtype)
        for one in described
    ]


def test_attention_is_summed_and_differentiated_by_what_is_not_an_id(mesh):
    query, key, value, segment_ids = filled(arguments_of(ATTENTION_SHAPE, mesh))
    segment_ids = jnp.sort(segment_ids, axis=1)
    program = as_in_a_step(attention_with_gradients("chunked"), mesh)
    total, gradients = program(query, key, value, segment_ids)
    expected = attend(query, key, value, segment_ids, kernel="reference").astype(jnp.float32).sum()
    np.testing.assert_allclose(total, expected, rtol=2e-2)
    assert [part.shape for part in gradients] == [query.shape, key.shape, value.shape]


def test_the_loss_is_that_of_its_labels_with_z_loss(mesh):
    hidden, head, labels, _ = filled(arguments_of(LOSS_SHAPE, mesh))
    weights = jnp.full(labels.shape, 1 / labels.size, jnp.float32)
    value, gradients = as_in_a_step(loss_with_gradients("chunked"), mesh)(hidden, head, labels, weights)
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64)
    normalizer = np.log(np.exp(logits).sum(1))
    expected = (normalizer - logits[np.arange(labels.size), labels] + 1e-4 * normalizer**2).mean()
    np.testing.assert_allclose(value, expected, rtol=2e-2)
    assert [part.shape for part in gradients] == [hidden.shape, head.shape]


@pytest.mark.parametrize("shape", [ATTENTION_SHAPE, LOSS_SHAPE])
def test_the_described_arguments_are_enough_to_compile(shape, mesh):
    make = attention_with_gradients if shape is ATTENTION_SHAPE else loss_with_gradients
    arguments = arguments_of(shape, mesh)
    assert as_in_a_step(make("chunked"), mesh).lower(*arguments).compile().memory_analysis() is not None
