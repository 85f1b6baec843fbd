"""The programs that compilers and benchmarks get: of the shapes they name, and with the values of the kernels."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.kernel_alone import (
    AttentionShape,
    LossShape,
    arguments_of,
    attention_with_gradients,
    jit_like_a_step,
    loss_with_gradients,
)
from runtime.kernels.attention import attend
from runtime.kernels.cross_entropy import linear_cross_entropy
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape

ATTENTION_SHAPE = AttentionShape(num_sequences=2, sequence_length=16, num_heads=4, num_kv_heads=2, head_dim=8)
LOSS_SHAPE = LossShape(num_tokens=24, hidden_size=8, vocab_size=32)
OF_ATTENTION = attention_with_gradients(partial(attend, kernel="chunked"))
OF_LOSS = loss_with_gradients(partial(linear_cross_entropy, kernel="chunked"))


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape(), jax.devices()[:1])


def filled(described: list[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [
        jnp.asarray(rng.integers(0, 2, one.shape) if one.dtype == jnp.int32 else rng.normal(size=one.shape), one.dtype)
        for one in described
    ]


def test_attention_is_summed_and_differentiated_by_query_key_and_value(mesh):
    *parts, segment_ids = filled(arguments_of(ATTENTION_SHAPE, mesh))
    parts[0] *= ATTENTION_SHAPE.head_dim**-0.5  # queries come scaled
    segment_ids = jnp.sort(segment_ids, axis=1)
    total, gradients = jit_like_a_step(OF_ATTENTION, mesh)(*parts, segment_ids)

    def reference(*parts: jax.Array) -> jax.Array:
        return attend(*parts, segment_ids, kernel="reference").sum()

    wide = [part.astype(jnp.float32) for part in parts]
    np.testing.assert_allclose(total, reference(*wide), rtol=2e-2)
    for ours, expected in zip(gradients, jax.grad(reference, argnums=(0, 1, 2))(*wide), strict=True):
        assert np.linalg.norm(np.asarray(ours, np.float32) - expected) < 0.02 * np.linalg.norm(expected)


def test_the_loss_is_that_of_its_labels_with_z_loss(mesh):
    hidden, head, labels, _ = filled(arguments_of(LOSS_SHAPE, mesh))
    weights = jnp.full(labels.shape, 1 / labels.size, jnp.float32)
    value, (of_hidden, of_head) = jit_like_a_step(OF_LOSS, mesh)(hidden, head, labels, weights)
    rows, columns = (np.asarray(side, np.float64) for side in (hidden, head))
    logits = rows @ columns
    normalizer = np.log(np.exp(logits).sum(1))
    losses = normalizer - logits[np.arange(labels.size), labels]
    np.testing.assert_allclose(value, (losses + 1e-4 * normalizer**2).mean(), rtol=1e-5)
    of_logits = np.exp(logits - normalizer[:, None]) * (1 + 2e-4 * normalizer)[:, None] / labels.size
    of_logits[np.arange(labels.size), labels] -= 1 / labels.size
    for ours, expected in ((of_hidden, of_logits @ columns.T), (of_head, rows.T @ of_logits)):
        assert np.linalg.norm(np.asarray(ours, np.float64) - expected) < 0.01 * np.linalg.norm(expected)


def test_a_program_is_compiled_as_a_step_is_under_its_mesh_with_its_options(mesh, monkeypatch):
    asked = []
    monkeypatch.setattr("benchmarks.kernel_alone.compiler_options", lambda mesh: asked.append(mesh) or {})
    program = jit_like_a_step(OF_LOSS, mesh)
    assert asked == [mesh]
    assert "shard_map" in str(jax.make_jaxpr(program)(*arguments_of(LOSS_SHAPE, mesh)))


@pytest.mark.parametrize(
    ("shape", "program"),
    [
        (ATTENTION_SHAPE, OF_ATTENTION),
        (LOSS_SHAPE, OF_LOSS),
    ],
)
def test_the_described_arguments_are_enough_to_compile(shape, program, mesh):
    compiled = jit_like_a_step(program, mesh).lower(*arguments_of(shape, mesh)).compile()
    assert compiled.memory_analysis() is not None
