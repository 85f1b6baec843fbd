"""Each loss kernel passes one battery: values and gradients of float64 NumPy, per token, z-loss included."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from runtime.kernels import cross_entropy, cross_entropy_chunked

KERNELS = ("reference", "chunked", "chunked_wide")
Z_LOSS = 0.02


class Exact(NamedTuple):
    objective: float
    loss: np.ndarray
    log_normalizer: np.ndarray
    hidden_gradient: np.ndarray
    head_gradient: np.ndarray


def inputs(tokens: int, vocab_size: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(tokens, 24)).astype(np.float32)
    head = rng.normal(size=(24, vocab_size)).astype(np.float32)
    labels = rng.integers(0, vocab_size, tokens, dtype=np.int32)
    weights = (rng.uniform(size=tokens) * (rng.uniform(size=tokens) < 0.8)).astype(np.float32)
    return tuple(jnp.asarray(part) for part in (hidden, head, labels, weights))


def exact(*arrays: jax.Array | np.ndarray) -> Exact:
    hidden, head, weights = (np.asarray(arrays[index], np.float64) for index in (0, 1, 3))
    labels = np.asarray(arrays[2])
    logits = hidden @ head
    peak = logits.max(axis=1)
    log_normalizer = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
    loss = log_normalizer - logits[np.arange(len(labels)), labels]
    gradient = np.exp(logits - log_normalizer[:, None]) * (weights * (1 + 2 * Z_LOSS * log_normalizer))[:, None]
    gradient[np.arange(len(labels)), labels] -= weights
    objective = float((weights * (loss + Z_LOSS * log_normalizer**2)).sum())
    return Exact(objective, loss, log_normalizer, gradient @ head.T, hidden.T @ gradient)


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FOR_CPUS", "WIDE"):  # several blocks, the last one padded
        cut = getattr(cross_entropy_chunked, name)
        monkeypatch.setattr(cross_entropy_chunked, name, cut._replace(num_logits=1 << 14))


def differentiated(kernel: str) -> Callable:
    def objective(
        hidden: jax.Array, head: jax.Array, labels: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, cross_entropy.CrossEntropy]:
        result = cross_entropy.linear_cross_entropy(
            hidden, head, labels, weights=weights, z_loss=jnp.float32(Z_LOSS), kernel=kernel
        )
        return 3 * result.objective, result  # 3: a cotangent other than one

    return jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)


def run(kernel: str) -> Callable:
    """Compile with every rounding: XLA may skip one that another cast follows, and hide it from a test."""
    return jax.jit(differentiated(kernel), compiler_options={"xla_allow_excess_precision": False})


@pytest.mark.parametrize(("tokens", "vocab_size"), [(256, 128), (1536, 768)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_values_and_gradients_are_those_of_float64(kernel: str, tokens: int, vocab_size: int) -> None:
    arguments = inputs(tokens, vocab_size)
    (_, result), gradients = run(kernel)(*arguments)
    expected = exact(*arguments)
    assert float(result.objective) == pytest.approx(expected.objective, rel=1e-5)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.log_normalizer, expected.log_normalizer, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], 3 * expected.hidden_gradient, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradients[1], 3 * expected.head_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["reference", "chunked"])
def test_any_number_of_tokens_and_any_vocabulary_will_do(kernel: str) -> None:
    arguments = inputs(tokens=101, vocab_size=333)
    (_, result), gradients = run(kernel)(*arguments)
    expected = exact(*arguments)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[1], 3 * expected.head_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_huge_logits_neither_overflow_nor_give_nan(kernel: str) -> None:
    hidden, head, labels, weights = inputs(tokens=128, vocab_size=128)
    (_, result), gradients = run(kernel)(100 * hidden, 100 * head, labels, weights)
    assert np.isfinite(result.loss).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)


# The second is of so many blocks that a sum of them in bfloat16 would show.
@pytest.mark.parametrize(("tokens", "vocab_size"), [(128, 128), (1536, 768)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_bfloat16_products_are_summed_in_float32(kernel: str, tokens: int, vocab_size: int) -> None:
    hidden, head, labels, weights = inputs(tokens, vocab_size)
    narrow = jnp.asarray(hidden, jnp.bfloat16), jnp.asarray(head, jnp.bfloat16)
    (_, result), gradients = run(kernel)(*narrow, labels, weights)
    expected = exact(*(np.asarray(part, np.float32) for part in narrow), labels, weights)
    assert result.loss.dtype == jnp.float32
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-4, atol=1e-4)
    for gradient, wanted in zip(gradients, expected[3:], strict=True):
        assert gradient.dtype == jnp.bfloat16
        error = np.asarray(gradient, np.float64) - 3 * wanted
        assert np.linalg.norm(error) < 0.004 * np.linalg.norm(3 * wanted)


def sizes_of_results(program: Jaxpr) -> Iterator[int]:
    """Yield the sizes of each operation's results, also in loops and calls; a Pallas kernel works on one block
    inside."""
    for equation in program.eqns:
        yield from (result.aval.size for result in equation.outvars)
        if equation.primitive.name != "pallas_call":
            for part in jax.tree.leaves(list(equation.params.values())):
                if isinstance(part, Jaxpr | ClosedJaxpr):
                    yield from sizes_of_results(getattr(part, "jaxpr", part))


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_the_reference_holds_tokens_by_vocabulary(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the blocks of a run
    tokens, hidden_size, vocab_size = 8192, 4096, 128_256
    shapes = (((tokens, hidden_size), "bfloat16"), ((hidden_size, vocab_size), "bfloat16"))
    per_token = (((tokens,), "int32"), ((tokens,), "float32"))
    program = jax.make_jaxpr(differentiated(kernel))(*(jax.ShapeDtypeStruct(*each) for each in (*shapes, *per_token)))
    largest = max(sizes_of_results(program.jaxpr))
    assert largest >= hidden_size * vocab_size  # the gradient of the head, so all of the program was looked through
    assert (largest < tokens * vocab_size) == (kernel != "reference")


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_per_token_outputs_have_no_gradient(kernel: str) -> None:
    hidden, head, labels, weights = inputs(tokens=128, vocab_size=128)

    def of_figures(hidden: jax.Array) -> jax.Array:
        result = cross_entropy.linear_cross_entropy(
            hidden, head, labels, weights=weights, z_loss=jnp.float32(0), kernel=kernel
        )
        return jnp.sum(result.loss + result.log_normalizer)

    assert not np.any(jax.grad(of_figures)(hidden))
