"""The gate of SwiGLU: value and gradients of both ways, against the formula in float64."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.kernels.gated import GateGradient, gated

GATES = np.concatenate([np.linspace(-12, 12, 49), [-1e4, -100.0, -0.0, 100.0, 1e4]])
WAYS = get_args(GateGradient)


def of_formula(gate: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, and its derivatives by gate and up."""
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-gate))
    silu = gate * sigmoid
    return silu * up, up * (sigmoid + silu * (1 - sigmoid)), silu


def inputs(dtype: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    up, cotangent = (rng.normal(size=(3, GATES.size)) for _ in range(2))
    gate = np.broadcast_to(GATES, up.shape)
    return tuple(jnp.asarray(part, dtype) for part in (gate, up, cotangent))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_value_and_gradients_are_those_of_the_formula(way: GateGradient, dtype: str, tolerance: float) -> None:
    gate, up, cotangent = inputs(dtype)
    value, pull_back = jax.vjp(jax.jit(lambda gate, up: gated(gate, up, gradient=way)), gate, up)
    of_gate, of_up = pull_back(cotangent)
    expected, by_gate, by_up = of_formula(*(np.asarray(part, np.float64) for part in (gate, up)))
    wide = np.asarray(cotangent, np.float64)
    for got, wanted in ((value, expected), (of_gate, by_gate * wide), (of_up, by_up * wide)):
        assert got.dtype == jnp.dtype(dtype)
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance)


def test_the_recomputed_way_keeps_no_more_than_its_arguments() -> None:
    gate, up, _ = inputs("float32")
    _, pull_back = jax.vjp(lambda gate, up: gated(gate, up, gradient="recomputed"), gate, up)
    assert sum(leaf.size for leaf in jax.tree.leaves(pull_back)) == gate.size + up.size


def test_each_gradient_has_a_sigmoid_of_its_own() -> None:
    gate, up, cotangent = inputs("float32")

    def pulled_back(gate: jax.Array, up: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vjp(lambda *parts: gated(*parts, gradient="recomputed"), gate, up)[1](cotangent)

    assert jax.jit(pulled_back).lower(gate, up).as_text().count("stablehlo.optimization_barrier") == 2
