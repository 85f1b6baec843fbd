"""The average moves the right way, by the right amount. Two public runs had it the other way round."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.optim.ema import Ema, average_named
from runtime.training.state import all_averaged, averaged
from tests.catalogue import expect_error


def test_weights_that_jump_from_0_to_1_move_the_average_to_1_minus_decay() -> None:
    average = averaged({"w": jnp.zeros(3)}, {"w": jnp.ones(3)}, jnp.float32(0.995))
    np.testing.assert_allclose(average["w"], 0.005, rtol=1e-4)


def test_after_its_half_life_the_average_is_half_way() -> None:
    ema = Ema(decay=0.995)
    average = jnp.zeros(())
    for _ in range(round(ema.half_life_in_steps)):
        average = averaged(average, jnp.ones(()), jnp.float32(ema.decay))
    assert float(average) == pytest.approx(0.5, abs=2e-3)


def test_decays_are_those_of_the_averages_in_the_order_of_their_names() -> None:
    averages = all_averaged({"slow": jnp.zeros(2), "fast": jnp.zeros(2)}, jnp.ones(2), jnp.array([0.5, 0.875]))
    assert {name: float(values[0]) for name, values in averages.items()} == {"fast": 0.5, "slow": 0.125}


def test_an_average_is_found_by_its_name_and_the_first_without_one() -> None:
    kept = (Ema(0.99, "fast"), Ema(0.995))
    assert average_named(kept, None, owner="phoenix") == kept[0]
    assert average_named(kept, "averaged", owner="phoenix") == kept[1]
    with expect_error(ValueError):
        average_named(kept, "slow", owner="phoenix")
    with expect_error(ValueError):
        average_named((), None, owner="phoenix")


@pytest.mark.parametrize("name", ["hot", "", "a.b", "Slow"])
def test_an_average_cannot_be_called_what_would_be_taken_for_something_else(name: str) -> None:
    with expect_error(ValueError):
        Ema(0.99, name)


def test_an_average_that_outlives_every_run_is_refused() -> None:
    with expect_error(ValueError):
        Ema(0.99999999)
    assert Ema(0.9999999).every_steps == 10_005


@jax.jit
def _after(average: jax.Array, weights: jax.Array, share: jax.Array, updates: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, updates, lambda _, held: averaged(held, weights, share), average)


@given(st.floats(0, 0.99).map(lambda x: 0.5 ** (10 ** (-7 * x))), st.floats(0.01, 12), st.sampled_from([1.01, 0.99]))
@example(0.9999, 12, 1.01)
@example(0.99933, 12, 1.01)
@example(0.99999, 12, 1.01)
@example(0.999999, 12, 0.99)
@example(0.9999999, 3, 1.01)
def test_a_jump_by_a_hundredth_of_a_weight_is_followed_at_every_decay_that_is_taken(
    decay: float, half_lives: float, factor: float
) -> None:
    ema = Ema(decay)
    # Every place in a binade, of either sign, since a unit in the last place is another share of each.
    before = np.concatenate([np.geomspace(1, 2, 200), -np.geomspace(1e-3, 2e-3, 200)]).astype(np.float32)
    weights = (before * factor).astype(np.float32)
    taken = round(half_lives * ema.half_life_in_steps / ema.every_steps)
    share = ema.kept_by(ema.every_steps - 1)
    average = np.float64(_after(before, weights, jnp.float32(share), jnp.int32(taken)))
    jump = np.float64(weights) - before
    expected = weights - jump * decay ** (taken * ema.every_steps)
    assert np.max(np.abs(average - expected) / np.abs(jump)) < 0.02


@given(st.floats(0.5, 0.99999), st.integers(0, 10**12))
def test_an_averages_decay_depends_on_the_step_alone(decay: float, begin: int) -> None:
    ema = Ema(decay)
    kept = [ema.kept_by(step) for step in range(begin, begin + ema.every_steps)]
    assert math.prod(kept) == pytest.approx(decay**ema.every_steps)
    assert sum(share < 1 for share in kept) == 1
    assert (begin + 1 + next(index for index, share in enumerate(kept) if share < 1)) % ema.every_steps == 0


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_an_update_that_an_average_does_not_take_leaves_its_bits(worst: float) -> None:
    average = jnp.array([1.5, -0.0, 3e-42], jnp.float32)
    assert averaged(average, jnp.full(3, worst), jnp.float32(1)).tobytes() == average.tobytes()
