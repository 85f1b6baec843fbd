"""The loss kernel for Hopper: its definition against float64, the kernel on simulated processors against that.

That it becomes machine code is tested in tests/runtime/cost/test_compile_for_real.py.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.kernels import cross_entropy, cross_entropy_gpu
from runtime.kernels.cross_entropy_chunked import block_tokens, by_blocks
from runtime.kernels.cross_entropy_gpu import (
    COLUMNS,
    CUT,
    TOKENS,
    by_exponentials,
    exponentials,
    exponentials_in_xla,
    refuse_shape,
)

Z_LOSS = 0.02
# Three blocks, the last of which is mostly padding.
NUM_TOKENS, HIDDEN_SIZE, VOCAB_SIZE = 2 * TOKENS + 19, 128, 3 * COLUMNS
SHAPE: dict[str, Any] = {"num_tokens": 4096, "hidden_size": 768, "vocab_size": 128_256, "compute_dtype": "bfloat16"}


def inputs(num_tokens: int, hidden_size: int, vocab_size: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(num_tokens, hidden_size)), jnp.bfloat16)
    head = jnp.asarray(0.3 * rng.normal(size=(hidden_size, vocab_size)), jnp.bfloat16)
    labels = jnp.asarray(rng.integers(0, vocab_size, num_tokens), jnp.int32)
    weights = jnp.asarray(rng.uniform(size=num_tokens) * (rng.uniform(size=num_tokens) < 0.8), jnp.float32)
    return hidden, head, labels, weights


@pytest.fixture
def in_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = CUT._replace(num_logits=TOKENS * VOCAB_SIZE, form=partial(by_exponentials, form=exponentials_in_xla))
    assert block_tokens(NUM_TOKENS, VOCAB_SIZE, cut) == TOKENS
    monkeypatch.setitem(cross_entropy.KERNELS, "mosaic_gpu", partial(by_blocks, cut))


def far(found: jax.Array, exact: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact))


def test_values_and_gradients_are_those_of_float64_to_the_rounding_of_a_gradient_in_bfloat16(in_xla: None) -> None:
    hidden, head, labels, weights = inputs(NUM_TOKENS, HIDDEN_SIZE, VOCAB_SIZE)

    def objective(hidden: jax.Array, head: jax.Array) -> tuple[jax.Array, cross_entropy.CrossEntropy]:
        result = cross_entropy.linear_cross_entropy(
            hidden, head, labels, weights=weights, z_loss=jnp.float32(Z_LOSS), kernel="mosaic_gpu"
        )
        return 3 * result.objective, result  # 3: a cotangent other than one

    (_, result), gradients = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)(hidden, head)
    without_gradients = objective(hidden, head)[1]
    rows, columns, scales = (np.asarray(part, np.float64) for part in (hidden, head, weights))
    assert (scales == 0).sum() > 50
    logits = rows @ columns
    log_normalizer = np.log(np.exp(logits).sum(axis=1))
    is_label = np.arange(VOCAB_SIZE) == np.asarray(labels)[:, None]
    loss = log_normalizer - logits[is_label]
    for found in (result, without_gradients):
        np.testing.assert_allclose(found.loss, loss, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.log_normalizer, log_normalizer, rtol=1e-6)
        exact = float((scales * (loss + Z_LOSS * log_normalizer**2)).sum())
        assert float(found.objective) == pytest.approx(exact, rel=1e-6)
    shares = np.exp(logits - log_normalizer[:, None]) * (scales * (1 + 2 * Z_LOSS * log_normalizer))[:, None]
    of_logits = 3 * (shares - is_label * scales[:, None])
    assert [gradient.dtype for gradient in gradients] == [jnp.bfloat16, jnp.bfloat16]
    assert far(gradients[0], of_logits @ columns.T) < 2**-8
    assert far(gradients[1], rows.T @ of_logits) < 2**-8
    assert not np.any(np.asarray(gradients[0])[scales == 0])


def test_huge_logits_neither_overflow_nor_give_nan(in_xla: None) -> None:
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)

    def objective(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return cross_entropy.linear_cross_entropy(
            hidden, head, labels, weights=weights, z_loss=jnp.float32(0), kernel="mosaic_gpu"
        ).objective

    value, gradients = jax.value_and_grad(objective, argnums=(0, 1))(100 * hidden, 100 * head)
    assert np.isfinite(value)
    assert all(np.isfinite(np.asarray(gradient, np.float32)).all() for gradient in gradients)


def test_the_gradient_of_a_token_that_is_nearly_sure_is_as_near_as_with_logits_in_float32(in_xla: None) -> None:
    """It is a probability less one; with the exponential of the label rounded, nothing of it would be left."""
    _, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    columns = np.asarray(head, np.float64)
    directions = columns[:, labels].T
    hidden = jnp.asarray(5 * directions / np.linalg.norm(directions, axis=1)[:, None], jnp.bfloat16)

    def gradient(kernel: str) -> np.ndarray:
        def objective(hidden: jax.Array) -> jax.Array:
            return cross_entropy.linear_cross_entropy(
                hidden, head, labels, weights=jnp.ones_like(weights), z_loss=jnp.float32(0), kernel=kernel
            ).objective

        return np.asarray(jax.grad(objective)(hidden), np.float64)

    logits = np.asarray(hidden, np.float64) @ columns
    of_logits = np.exp(logits - np.log(np.exp(logits).sum(axis=1))[:, None])
    is_label = np.arange(VOCAB_SIZE) == np.asarray(labels)[:, None]
    assert np.median(of_logits[is_label]) > 0.999
    exact = (of_logits - is_label) @ columns.T

    def worst(found: np.ndarray) -> float:
        return float((np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)).max())

    assert worst(gradient("mosaic_gpu")) < 1.1 * worst(gradient("chunked_wide"))


def test_the_kernel_on_simulated_processors_gives_its_definition_and_nothing_races(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clusters: one has two tiles; and more steps of the hidden size than there are stages."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    monkeypatch.setattr(cross_entropy_gpu, "NUM_PROCESSORS", 4)
    hidden, head = inputs(TOKENS, 320, 3 * COLUMNS)[:2]
    simulated = partial(exponentials, interpret=InterpretGPUParams(detect_races=True))
    if jax.__version_info__ < (0, 11):
        with pytest.raises(NotImplementedError, match="cluster_barrier"):  # which this simulator does not know
            simulated(hidden, head)
        return
    found, expected = simulated(hidden, head), exponentials_in_xla(hidden, head)
    np.testing.assert_allclose(found.maximum, expected.maximum, rtol=1e-5)
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-5)
    of_logits = (np.asarray(each.of_logits, np.float32) for each in (found, expected))
    np.testing.assert_allclose(*of_logits, rtol=2**-7)  # neighbours in bfloat16
    assert not gpu_callbacks.get_races().races_found


@pytest.mark.parametrize(
    ("kind", "changed", "why"),
    [
        ("NVIDIA A100-SXM4-80GB", {}, "its kernel is for H100 and H200, and the device is 'NVIDIA A100-SXM4-80GB'"),
        ("NVIDIA H200", {"compute_dtype": "float32"}, "it takes bfloat16, and computed is in float32"),
        ("H100", {"vocab_size": 50_257}, "vocab_size 50257 is not a multiple of 256"),
        ("H100", {"hidden_size": 800}, "hidden_size 800 is not a multiple of 64"),
        ("", {"num_tokens": 255}, "255 tokens on a device are fewer than a block of 256"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused_with_the_reason(kind: str, changed: dict, why: str) -> None:
    refuse_shape("NVIDIA H200", **SHAPE)
    refuse_shape("", **SHAPE)
    with pytest.raises(ValueError, match=f"loss kernel 'mosaic_gpu': {why}; use loss kernel 'chunked_wide'"):
        refuse_shape(kind, **SHAPE | changed)


def test_the_kernel_itself_refuses_what_it_does_not_take() -> None:
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    for given, why in (
        ((hidden.astype(jnp.float32), head.astype(jnp.float32), labels, weights), "computed is in float32"),
        ((hidden[:, :100], head[:100], labels, weights), "hidden_size 100 "),
        ((hidden, head[:, :500], labels, weights), "vocab_size 500 "),
        ((hidden[:9], head, labels[:9], weights[:9]), "9 tokens on a device"),
    ):
        with pytest.raises(ValueError, match=why):
            cross_entropy_gpu.fused(*given, jnp.float32(Z_LOSS))
