"""The average moves the right way, by the right amount. Two public runs had it the other way round."""

import jax.numpy as jnp
import numpy as np
import pytest

from runtime.optim.averaging import all_averaged, averaged
from runtime.optim.ema import Ema, average_named


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
    with pytest.raises(ValueError, match="phoenix keeps averages called fast, averaged, and 'slow' is asked for"):
        average_named(kept, "slow", owner="phoenix")
    with pytest.raises(ValueError, match="phoenix keeps no average, and an average is asked for"):
        average_named((), None, owner="phoenix")


@pytest.mark.parametrize("name", ["hot", "", "a.b", "Slow"])
def test_an_average_cannot_be_called_what_would_be_taken_for_something_else(name: str) -> None:
    with pytest.raises(ValueError, match=r"Ema\.name is"):
        Ema(0.99, name)


def test_a_decay_that_no_float32_tells_from_1_is_refused() -> None:
    with pytest.raises(ValueError, match="which is 1 in float32: the average would never move"):
        Ema(0.99999999)
    assert float(jnp.float32(Ema(0.9999999).decay)) < 1
