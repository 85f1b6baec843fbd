"""The gradient of a look-up: the sum of its tokens' gradients by NumPy in float64, in either order, bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.embedding import LookUp, look_up

LOOK_UPS: tuple[LookUp, ...] = ("scattered", "sorted")


def gradient_of(ids: np.ndarray, rows: np.ndarray, num_rows: int, gradient: LookUp, dtype: str) -> np.ndarray:
    """Return the gradient of a table, where `rows` is the cotangent of each token."""

    @jax.jit
    def pulled(table: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
        return jax.vjp(lambda table: look_up(table, ids, gradient=gradient), table)[1](rows)[0]

    table = jnp.zeros((num_rows, rows.shape[1]), dtype)
    found = pulled(table, jnp.asarray(ids), jnp.asarray(rows, dtype))
    assert found.dtype == dtype and found.shape == table.shape
    return np.asarray(found, np.float64)


@pytest.mark.parametrize("gradient", LOOK_UPS)
def test_a_look_up_is_the_rows(gradient: LookUp) -> None:
    table = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    ids = np.array([3, 3, 0, 6], np.int32)
    assert np.array_equal(look_up(jnp.asarray(table), jnp.asarray(ids), gradient=gradient), table[ids])


@pytest.mark.parametrize("gradient", LOOK_UPS)
@given(
    ids=st.sampled_from((1, 2, 45)).flatmap(lambda size: st.lists(st.integers(0, 8), min_size=size, max_size=size)),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_a_row_s_gradient_is_the_sum_over_its_tokens(gradient: LookUp, ids: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(len(ids), 3))
    rows = rows.astype(np.float32).astype(np.float64)
    expected = np.zeros((9, 3))
    np.add.at(expected, ids, rows)
    found = gradient_of(np.array(ids, np.int32), rows, 9, gradient, "float32")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not found[[row for row in range(9) if row not in ids]].any()


@pytest.mark.parametrize("gradient", LOOK_UPS)
def test_a_frequent_token_loses_nothing_in_bfloat16(gradient: LookUp) -> None:
    """Summed in bfloat16 the 257th equal gradient changes nothing any more, and 2,000 of them give 256."""
    ids = np.zeros(2_000, np.int32)
    found = gradient_of(ids, np.ones((2_000, 2)), 3, gradient, "bfloat16")
    assert found[0].tolist() == [2_000.0, 2_000.0]


@pytest.mark.parametrize("gradient", LOOK_UPS)
def test_nan_stays_in_its_own_row_and_an_id_past_the_end_changes_none(gradient: LookUp) -> None:
    ids = np.array([2, 9, 0, 2, 1], np.int32)
    rows = np.array([[1.0], [5.0], [np.nan], [3.0], [7.0]])
    found = gradient_of(ids, rows, 4, gradient, "float32")[:, 0]
    assert np.isnan(found[0]) and found[1:].tolist() == [7.0, 4.0, 0.0]


def test_sorted_sums_hold_no_scatter_whose_places_may_coincide() -> None:
    """On a GPU such a scatter is added in any order, or made a sort of every number."""
    ids, rows = jnp.zeros(64, jnp.int32), jnp.ones((64, 8), jnp.bfloat16)

    def pulled(gradient: LookUp) -> str:
        def of(table: jax.Array) -> jax.Array:
            return jax.vjp(lambda table: look_up(table, ids, gradient=gradient), table)[1](rows)[0]

        return jax.jit(of).lower(jnp.zeros((16, 8), jnp.bfloat16)).as_text()

    assert pulled("sorted").count('"stablehlo.scatter"(') == pulled("sorted").count("unique_indices = true") == 1
    assert "unique_indices = true" not in pulled("scattered")
