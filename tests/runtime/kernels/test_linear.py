"""Both ways to a weight's gradient against NumPy in float64, and what XLA makes of the second."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.kernels.linear import WeightGradient, linear, weight_gradient

WAYS: tuple[WeightGradient, ...] = ("plain", "transposed")
ROWS, WEIGHT, COTANGENT = (
    np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    for seed, shape in enumerate(((48, 16), (16, 40), (48, 40)))
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_product_and_gradients_are_those_of_float64(way: WeightGradient, dtype: str, rtol: float) -> None:
    @jax.jit
    def both(rows: jax.Array, weight: jax.Array, cotangent: jax.Array) -> tuple[jax.Array, ...]:
        result, pull = jax.vjp(lambda rows, weight: linear(rows, weight, way=way), rows, weight)
        return result, *pull(cotangent)

    given = [jnp.asarray(part, dtype) for part in (ROWS, WEIGHT, COTANGENT)]
    rows, weight, cotangent = (np.asarray(part, np.float64) for part in given)
    expected = (rows @ weight, cotangent @ weight.T, rows.T @ cotangent)
    for found, right in zip(both(*given), expected, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(np.asarray(found, np.float64), right, rtol=rtol, atol=rtol * np.abs(right).max())


@pytest.mark.parametrize("way", WAYS)
def test_the_sum_can_be_kept_wider_than_its_arguments(way: WeightGradient) -> None:
    """256 and 1 are 257, which bfloat16 does not have."""
    rows = jnp.asarray([[256.0], [1.0]], "bfloat16")
    found = weight_gradient(rows, jnp.ones((2, 1), "bfloat16"), way=way, preferred_element_type=np.float32)
    assert found.dtype == np.float32 and found.item() == 257.0


@pytest.mark.parametrize(("way", "is_over_the_first_axis"), [("plain", True), ("transposed", False)])
def test_only_the_plain_way_sums_over_the_first_axis_of_its_left_side(
    way: WeightGradient, is_over_the_first_axis: bool
) -> None:
    """The copy is in the compiled program: without the barrier XLA would make a view of it."""
    form = jax.jit(lambda rows, cotangent: weight_gradient(rows, cotangent, way=way))
    program = form.lower(jnp.asarray(ROWS), jnp.asarray(COTANGENT)).compile().as_text()
    assert ("lhs_contracting_dims={0}" in program) == is_over_the_first_axis
