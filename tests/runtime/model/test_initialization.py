"""Initialization: every matrix of the flagship at full size, by the rule of the public code."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipelines.scales import EIGHT_B, LAPTOP
from runtime.model.initialization import FIXED, LEVANTER, Initialization
from runtime.model.layers import first_values
from runtime.model.llama import model as llama
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama
from runtime.model.model import leaves_by_name
from tests.catalogue import expect_error

KEY = jax.random.key(0, impl="threefry2x32")
NUM_VALUES = 2**18
FAN_INS = {
    "embed_tokens": "hidden_size", "q_proj": "hidden_size", "k_proj": "hidden_size", "v_proj": "hidden_size",
    "gate_proj": "hidden_size", "up_proj": "hidden_size", "down_proj": "intermediate_size", "lm_head": "hidden_size",
}  # fmt: skip
SMALL = LlamaConfig(512, 64, 192, 3, 4, 2, 32, 64)


def draws_of(config, monkeypatch):
    """Return the arguments of each draw of the model's first values, by name; nothing is made."""
    draws = {}

    def record(key, name, shape, initialization, **rule):
        draws[name] = shape, initialization, rule
        return jnp.zeros(shape, jnp.float32)

    monkeypatch.setattr(llama, "first_values", record)
    shapes = jax.eval_shape(Llama(config).init, KEY)
    return draws, {name.rpartition(".")[2]: leaf for name, leaf in leaves_by_name(shapes).items()}


@pytest.mark.parametrize("scale", [EIGHT_B, LAPTOP], ids=["8b", "laptop"])
def test_every_matrix_of_the_flagship_has_the_public_distribution_at_full_size(scale, monkeypatch):
    draws, shapes = draws_of(scale.model, monkeypatch)
    assert draws.keys() == FAN_INS.keys() | {"o_proj"}
    for name, (shape, initialization, rule) in draws.items():
        assert shape == shapes[name].shape
        heads = scale.model.num_attention_heads * scale.model.head_dim
        fan_in = heads if name == "o_proj" else getattr(scale.model, FAN_INS[name])
        num_values = min(NUM_VALUES, math.prod(shape))
        values = np.asarray(first_values(KEY, name, (num_values,), initialization, **rule), np.float64)
        unit = values * math.sqrt(fan_in)
        assert abs(unit.mean()) < 5 / math.sqrt(num_values), name
        assert unit.std() == pytest.approx(0.98658, rel=5 / math.sqrt(2 * num_values)), name
        assert 2.9 < np.abs(unit).max() <= 3 * (1 + 1e-6), name
        assert np.mean(np.abs(unit) < 1) == pytest.approx(0.68269 / 0.99730, abs=0.01), name


@pytest.mark.parametrize("initialization", [FIXED, LEVANTER])
def test_a_smaller_draw_is_the_beginning_of_a_larger_one(initialization):
    whole = first_values(KEY, "q_proj", (3, 40, 50), initialization, fan_in=40)
    part = first_values(KEY, "q_proj", (777,), initialization, fan_in=40)
    assert np.array_equal(np.asarray(whole).reshape(-1)[:777], part)


def test_the_fan_in_of_the_public_8b_gives_its_deviations():
    assert LEVANTER.nominal_deviation(4096) == 0.015625
    assert LEVANTER.nominal_deviation(14_336) == pytest.approx(0.00835, abs=5e-6)
    assert LEVANTER.deviation(4096) == pytest.approx(0.015415, abs=1e-6)
    assert LEVANTER.limit(4096) == 3 / 64


def test_a_fixed_scale_is_that_of_hugging_face_in_every_matrix():
    params = Llama(SMALL).init(KEY)
    matrices = {name: leaf for name, leaf in leaves_by_name(params).items() if "norm" not in name}
    assert len(matrices) == 9
    for leaf in matrices.values():
        assert float(jnp.std(leaf)) == pytest.approx(0.02, rel=0.03)


def test_the_depth_scale_divides_what_adds_to_the_residual_stream_and_nothing_else():
    depth_scaled = dataclasses.replace(SMALL, initialization=dataclasses.replace(FIXED, depth_scale="residual"))
    plain, scaled = (leaves_by_name(Llama(config).init(KEY)) for config in (SMALL, depth_scaled))
    for name, leaf in plain.items():
        factor = math.sqrt(6) if name in ("layers.o_proj", "layers.down_proj") else 1
        np.testing.assert_allclose(scaled[name] * factor, leaf, rtol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", 0.0), ("factor", float("nan")), ("factor", float("inf")),
        ("truncated_at", 0.0), ("truncated_at", -3.0), ("truncated_at", float("inf")),
    ],
)  # fmt: skip
def test_a_distribution_that_is_none_is_refused(field, value):
    with expect_error(ValueError):
        Initialization(**{field: value})


@pytest.mark.parametrize("value", [True, None, "0.02"])
def test_a_factor_that_is_no_number_is_refused_with_its_field(value):
    config = dataclasses.replace(FIXED)
    object.__setattr__(config, "factor", value)  # which the suite's own check of types would else refuse first
    with expect_error(ValueError):
        config.__post_init__()
