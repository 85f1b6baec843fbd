"""Muon on shards is optax's Muon for the matrices of the layers, and AdamW for all other tensors."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from jax.sharding import Mesh, PartitionSpec

from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama
from runtime.model.model import STACKED, leaves_by_name
from runtime.optim.adamw import decay_mask
from runtime.optim.optimizer import ADAMW, Muon, Optimizer, dealt_axes
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.state import TrainState, initial_state, state_specs
from tests.catalogue import expect_error
from tests.runtime.optim.test_adamw import CONFIG, NUMBERS, STEPS, gradients_of, initial

MODEL = Llama(CONFIG)
ONE = make_mesh(MeshShape(), jax.devices()[:1])


@functools.cache
def after(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """Return the parameters, by their names, after a few updates that clip nothing."""
    transformation, params = optimizer.build(MODEL), initial()
    state = transformation.init(params)
    numbers = {name: jnp.float32(value) for name, value in NUMBERS.items()} | {"max_norm": jnp.float32(jnp.inf)}
    update = jax.jit(functools.partial(transformation.update, grad_norm=jnp.float32(1), **numbers))
    for step in range(STEPS):
        updates, state = update(gradients_of(params, step), state, params)
        params = optax.apply_updates(params, updates)
    return {name: np.asarray(leaf) for name, leaf in leaves_by_name(params).items()}


def after_optax(consistent_rms: float | None, beta: float) -> dict[str, np.ndarray]:
    params = initial()
    # A stack of matrices has its layers on the first axis.
    matrix = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    optimizer = optax.contrib.muon(
        NUMBERS["learning_rate"],
        beta=beta,
        weight_decay=NUMBERS["weight_decay"],
        weight_decay_mask=lambda tree: decay_mask(MODEL, initial()),
        muon_weight_dimension_numbers=lambda tree: jax.tree.map(lambda leaf: matrix if leaf.ndim == 3 else None, tree),
        consistent_rms=consistent_rms,
    )
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for step in range(STEPS):
            updates, state = update(gradients_of(params, step), state, params)
            params = optax.apply_updates(params, updates)
    return {name: np.asarray(leaf) for name, leaf in leaves_by_name(params).items()}


def is_matrix(name: str) -> bool:
    return name.startswith(STACKED) and name.endswith("_proj")


@pytest.mark.parametrize(("consistent_rms", "beta"), [(0.2, 0.95), (None, 0.8)])
def test_the_matrices_of_the_layers_are_those_of_optax(consistent_rms: float | None, beta: float) -> None:
    ours = after(Muon(dtype="float32", consistent_rms=consistent_rms, beta=beta))
    for name, expected in after_optax(consistent_rms, beta).items():
        if is_matrix(name):
            np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-6)


def test_all_other_tensors_are_bitwise_those_of_adamw() -> None:
    ours, adamw = after(Muon()), after(ADAMW)
    assert {name for name in ours if not np.array_equal(ours[name], adamw[name])} == {*filter(is_matrix, ours)}


def test_an_update_of_a_matrix_has_the_chosen_size_and_is_nearly_orthogonal() -> None:
    before, moved = leaves_by_name(initial()), after(Muon(dtype="float32"))
    for name in filter(is_matrix, moved):
        values = np.linalg.svd(moved[name] - np.asarray(before[name]), compute_uv=False)
        assert values.min() > 0
    rate = NUMBERS["learning_rate"]
    one = np.asarray(moved["layers.q_proj"] - np.asarray(before["layers.q_proj"]))
    assert math.sqrt(float(np.mean(one**2))) < STEPS * rate * 0.3


@pytest.mark.parametrize("field", [{"beta": 1.0}, {"beta": 1 - 2**-26}, {"consistent_rms": math.nan}, {"ns_steps": 0}])
def test_a_setting_that_cannot_work_is_an_error(field: dict[str, Any]) -> None:
    with expect_error(ValueError):
        Muon(**field)


def test_a_matrix_that_an_axis_does_not_split_is_an_error() -> None:
    class Copied(Llama):
        def tensors(self) -> Any:
            return {name: row._replace(spec=PartitionSpec()) for name, row in super().tensors().items()}

    params = initial()
    transformation = Muon().build(Copied(CONFIG), {"data_x": 2})
    numbers = {name: jnp.float32(1) for name in (*NUMBERS, "max_norm", "grad_norm")}
    update = functools.partial(transformation.update, **numbers)
    with expect_error(ValueError):
        jax.eval_shape(update, params, jax.eval_shape(transformation.init, params), params)


@pytest.mark.parametrize(
    ("num_layers", "sizes", "expected"), [(32, (8, 8, 16), (2,)), (6, (2, 4, 3), (2, 0)), (5, (2,), ()), (1, (), ())]
)
def test_layers_are_dealt_out_over_the_largest_axes(
    num_layers: int, sizes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert dealt_axes(num_layers, sizes) == expected


def test_the_products_of_an_update_are_those_that_the_compiler_counts() -> None:
    """On one device; the compiler counts element-wise operations too."""
    config = LlamaConfig(16, 64, 160, 2, 4, 2, 16, 16)
    model, muon = Llama(config), Muon(dtype="float32")
    params = model.init(jax.random.key(0))
    transformation = muon.build(model)
    numbers = {name: jnp.float32(1) for name in (*NUMBERS, "max_norm", "grad_norm")}
    update = jax.jit(lambda state: transformation.update(params, state, params, **numbers))
    compiled = update.lower(transformation.init(params)).compile()
    # XLA counts the body of a loop once: one layer's products.
    found = compiled.cost_analysis()["flops"] * config.num_hidden_layers
    assert 1.0 < found / muon.update_flops(config, ()) < 1.3


@pytest.mark.parametrize(
    ("num_layers", "shape", "torus"),
    [
        pytest.param(8, MeshShape(data=8), (2, 2, 2), id="each device has a layer of its own"),
        pytest.param(6, MeshShape(data=2, model=2, context=2), (2, 1, 1), id="all axes, both ways"),
    ],
)
def test_eight_devices_make_the_update_of_one(num_layers: int, shape: MeshShape, torus: tuple[int, int, int]) -> None:
    config = dataclasses.replace(CONFIG, num_hidden_layers=num_layers, hidden_size=16, num_key_value_heads=2)
    ours, expected = (updated(config, mesh) for mesh in (make_mesh(shape, torus=torus), ONE))
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-7)


def updated(config: LlamaConfig, mesh: Mesh) -> dict[str, np.ndarray]:
    """Return the parameters and the state after an update on a mesh."""
    model, muon = Llama(config), Muon(dtype="float32", ns_steps=2)
    state = initial_state(config, 0, mesh, optimizer=muon)
    numbers = {name: jnp.float32(value) for name, value in NUMBERS.items()} | {"max_norm": jnp.float32(jnp.inf)}

    def update(state: TrainState, gradients: Any) -> Any:
        transformation = muon.build(model, mesh.shape)
        step, optimizer = transformation.update(
            gradients, state.optimizer, state.params, grad_norm=jnp.float32(1), **numbers
        )
        return dataclasses.replace(state, params=optax.apply_updates(state.params, step), optimizer=optimizer)

    specs = state_specs(state, config)
    program = jax.shard_map(update, mesh=mesh, in_specs=(specs, specs.params), out_specs=specs, check_vma=False)
    result = jax.jit(program)(state, gradients_of(state.params, 0))
    return {name: np.asarray(leaf) for name, leaf in leaves_by_name(result).items()}
