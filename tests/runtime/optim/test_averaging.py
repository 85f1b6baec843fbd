"""The average moves the right way, by the right amount. Two public runs had it the other way round."""

import jax.numpy as jnp
import numpy as np
import pytest

from runtime.optim.averaging import averaged
from runtime.optim.ema import Ema


def test_weights_that_jump_from_0_to_1_move_the_average_to_1_minus_decay() -> None:
    average = averaged({"w": jnp.zeros(3)}, {"w": jnp.ones(3)}, jnp.float32(0.995))
    np.testing.assert_allclose(average["w"], 0.005, rtol=1e-4)


def test_after_its_half_life_the_average_is_half_way() -> None:
    ema = Ema(decay=0.995)
    average = jnp.zeros(())
    for _ in range(round(ema.half_life_in_steps)):
        average = averaged(average, jnp.ones(()), jnp.float32(ema.decay))
    assert float(average) == pytest.approx(0.5, abs=2e-3)
