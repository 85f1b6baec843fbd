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
    LARGEST_LOSS,
    TOKENS,
    by_ratios,
    check_shape,
    ratios_in_xla,
    ratios_to_labels,
)
from tests.catalogue import expect_error

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
    cut = CUT._replace(num_logits=TOKENS * VOCAB_SIZE, form=partial(by_ratios, form=ratios_in_xla))
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


def value_and_gradients(kernel: str, *given: jax.Array, z_loss: float = Z_LOSS) -> tuple[jax.Array, ...]:
    """Return losses, log-normalisers, and the gradients of hidden states and head."""
    hidden, head, labels, weights = given

    def objective(hidden: jax.Array, head: jax.Array) -> tuple[jax.Array, cross_entropy.CrossEntropy]:
        result = cross_entropy.linear_cross_entropy(
            hidden, head, labels, weights=weights, z_loss=jnp.float32(z_loss), kernel=kernel
        )
        return result.objective, result

    (_, result), gradients = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)(hidden, head)
    return result.loss, result.log_normalizer, *gradients


def with_one_loss_of(loss: float) -> tuple[jax.Array, ...]:
    """Return inputs where one token's hidden state is long and points away from its label: a loss of about `loss`."""
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    column = np.asarray(head, np.float64)[:, int(labels[7])]
    others = np.asarray(head, np.float64) - column[:, None]
    away = -column / np.linalg.norm(column)
    scale = loss / np.log(np.exp(away @ others).sum())
    for _ in range(40):
        logits = scale * away @ others
        found = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        scale *= loss / found
    return hidden.at[7].set(jnp.asarray(scale * away, jnp.bfloat16)), head, labels, weights.at[7].set(1.0)


def test_a_huge_loss_is_computed_again_by_the_kernel_that_holds_logits(in_xla: None) -> None:
    ordinary, spike = with_one_loss_of(0.9 * LARGEST_LOSS), with_one_loss_of(1.1 * LARGEST_LOSS)
    assert float(value_and_gradients("reference", *ordinary)[0].max()) < LARGEST_LOSS
    for found, expected in zip(
        value_and_gradients("mosaic_gpu", *spike), value_and_gradients("chunked_wide", *spike), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))
    found, expected = (value_and_gradients(kernel, *ordinary) for kernel in ("mosaic_gpu", "chunked_wide"))
    assert float(found[0].max()) == pytest.approx(0.9 * LARGEST_LOSS, rel=0.02)
    assert np.any(np.asarray(found[2] != expected[2])), "it was computed by the ratios"
    for near, exact in zip(found, expected, strict=True):
        assert far(near, np.asarray(exact, np.float64)) < 2**-8


def test_one_device_computes_again_while_another_need_not(in_xla: None) -> None:
    """Both losses as one program over two devices, as a step has them."""
    shares = with_one_loss_of(0.9 * LARGEST_LOSS), with_one_loss_of(1.1 * LARGEST_LOSS)
    stacked = [jnp.stack(pair) for pair in zip(*shares, strict=True)]

    def of_one_device(*given: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(found[None] for found in value_and_gradients("mosaic_gpu", *(each[0] for each in given)))

    mesh = jax.sharding.Mesh(jax.devices()[:2], ("data",))
    split = jax.sharding.PartitionSpec("data")
    together = jax.jit(jax.shard_map(of_one_device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False))
    for index, given in enumerate(shares):
        for found, expected in zip(together(*stacked), value_and_gradients("mosaic_gpu", *given), strict=True):
            assert far(found[index], np.asarray(expected, np.float64)) < 1e-6


def test_a_z_loss_that_undoes_the_loss_leaves_the_label_its_gradient(in_xla: None) -> None:
    """Logits of -25 and below, and one token whose log-normaliser is where the two cancel."""
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    hidden, head = hidden.at[:, 0].set(1), head.at[0].set(-32)
    given = hidden, head, labels, weights.at[7].set(1)
    z_loss = float(-0.5 / value_and_gradients("mosaic_gpu", *given)[1][7])
    assert z_loss > 0
    found, expected = (value_and_gradients(kernel, *given, z_loss=z_loss) for kernel in ("mosaic_gpu", "chunked_wide"))
    assert far(found[2][7], np.asarray(expected[2][7], np.float64)) < 2**-6
    assert far(found[3], np.asarray(expected[3], np.float64)) < 2**-6


def test_huge_logits_neither_overflow_nor_give_nan(in_xla: None) -> None:
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    for found in value_and_gradients("mosaic_gpu", 100 * hidden, 100 * head, labels, weights):
        assert np.isfinite(np.asarray(found, np.float32)).all()


def test_a_loss_that_is_not_a_number_stays_nan(in_xla: None) -> None:
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    loss, _, of_hidden, of_head = value_and_gradients("mosaic_gpu", hidden.at[3, 5].set(jnp.nan), head, labels, weights)
    assert np.flatnonzero(~np.isfinite(np.asarray(loss))).tolist() == [3]
    assert not np.isfinite(np.asarray(of_hidden, np.float32)[3]).any()
    assert not np.isfinite(np.asarray(of_head, np.float32)).all()


def test_loss_and_gradient_of_a_token_that_is_nearly_sure_keep_what_float32_logits_lose(in_xla: None) -> None:
    """They are what little the other tokens have: the difference of two numbers near one where logits are held."""
    _, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    columns = np.asarray(head, np.float64)
    directions = columns[:, labels].T
    hidden = jnp.asarray(5 * directions / np.linalg.norm(directions, axis=1)[:, None], jnp.bfloat16)

    def found(kernel: str) -> list[np.ndarray]:
        def objective(hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
            result = cross_entropy.linear_cross_entropy(
                hidden, head, labels, weights=jnp.ones_like(weights), z_loss=jnp.float32(0), kernel=kernel
            )
            return result.objective, result.loss

        gradient, loss = jax.grad(objective, has_aux=True)(hidden)
        return [np.asarray(loss, np.float64)[:, None], np.asarray(gradient, np.float64)]

    logits = np.asarray(hidden, np.float64) @ columns
    is_label = np.arange(VOCAB_SIZE) == np.asarray(labels)[:, None]
    others = np.where(is_label, 0, np.exp(logits - logits[is_label][:, None])).sum(axis=1, keepdims=True)
    assert np.median(others) < 1e-3
    of_logits = np.exp(logits - logits[is_label][:, None]) / (1 + others) - is_label
    exact = [np.log1p(others), of_logits @ columns.T]

    def worst(kernel: str) -> list[float]:
        pairs = zip(found(kernel), exact, strict=True)
        return [float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max()) for a, b in pairs]

    (loss, gradient), (loss_by_logits, gradient_by_logits) = worst("mosaic_gpu"), worst("chunked_wide")
    assert loss < min(1e-4, loss_by_logits / 10)
    assert gradient < min(0.02, gradient_by_logits / 4)


def test_the_kernel_on_simulated_processors_gives_its_definition_and_nothing_races(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clusters: one has two tiles; and more steps of the hidden size than there are stages."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    monkeypatch.setattr(cross_entropy_gpu, "NUM_PROCESSORS", 4)
    hidden, head, labels, _ = inputs(TOKENS, 320, 3 * COLUMNS)
    label_logits = jnp.sum(hidden.astype(jnp.float32) * jnp.take(head, labels, axis=1).T.astype(jnp.float32), axis=1)
    given = hidden, head, label_logits, labels
    simulated = partial(ratios_to_labels, interpret=InterpretGPUParams(detect_races=True))
    if jax.__version_info__ < (0, 11):
        with pytest.raises(NotImplementedError):  # the simulator of this version lacks cluster barriers
            simulated(*given)
        return
    found, expected = simulated(*given), ratios_in_xla(*given)
    np.testing.assert_allclose(found.total, expected.total, rtol=3e-5)  # differences of long sums, as exponents
    to_label = [np.asarray(each.to_label, np.float32) for each in (found, expected)]
    np.testing.assert_array_equal(to_label[0] == 0, to_label[1] == 0)
    np.testing.assert_allclose(*to_label, rtol=2**-7)  # neighbours in bfloat16
    assert not gpu_callbacks.get_races().races_found


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("NVIDIA A100-SXM4-80GB", {}),
        ("NVIDIA H200", {"compute_dtype": "float32"}),
        ("H100", {"vocab_size": 50_257}),
        ("H100", {"hidden_size": 800}),
        ("", {"num_tokens": 255}),
    ],
)
def test_unsupported_shapes_of_the_kernel_are_refused_with_the_reason(kind: str, changed: dict) -> None:
    check_shape("NVIDIA H200", **SHAPE)
    check_shape("", **SHAPE)
    with expect_error(ValueError):
        check_shape(kind, **SHAPE | changed)


def test_the_kernel_itself_refuses_what_it_does_not_take() -> None:
    hidden, head, labels, weights = inputs(TOKENS, HIDDEN_SIZE, VOCAB_SIZE)
    for given, _why in (
        ((hidden.astype(jnp.float32), head.astype(jnp.float32), labels, weights), "computed is in float32"),
        ((hidden[:, :100], head[:100], labels, weights), "hidden_size 100 "),
        ((hidden, head[:, :500], labels, weights), "vocab_size 500 "),
        ((hidden[:9], head, labels[:9], weights[:9]), "9 tokens on a device"),
    ):
        with expect_error(ValueError):
            cross_entropy_gpu.fused(*given, jnp.float32(Z_LOSS))
