"""The train state: what a run holds on its devices, and its initial value."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float32, Key, UInt32

from runtime.model.config import ModelConfig
from runtime.model.model import Params, leaves_by_name
from runtime.model.placement import check_placement, is_spec, parameter_specs, shardings
from runtime.optim.optimizer import ADAMW, Optimizer
from runtime.optim.skipping import SkipHistory, empty_history

# Purposes of `jax.random.fold_in(root, purpose)`: each use of randomness has its own number.
INITIALIZATION = 0

TreeT = TypeVar("TreeT")


class TrainState(eqx.Module):
    """The state that the train step reads and writes. All leaves are arrays; parameters are float32."""

    params: Params
    optimizer: optax.OptState
    averages: dict[str, Params]  # by name; programs take them in the order of their sorted names
    key: UInt32[Array, "2"]  # data of the PRNG root; never changes, only folded into
    history: SkipHistory | None = None  # for the skip rule; None without one

    @property
    def skip_window_steps(self) -> int:
        """Size of the history; 0 without one."""
        return 0 if self.history is None else self.history.losses.shape[0]


def state_specs(state: TrainState, config: ModelConfig) -> TrainState:
    """Return the partition spec of each leaf.

    Averages lie where the parameters do, and so does a leaf of the optimizer whose path ends in a parameter's name.
    """
    everywhere, specs = PartitionSpec(), parameter_specs(config.build())
    copied = jax.tree.map(lambda _: everywhere, state)
    by_name = dict(zip(leaves_by_name(state.params), jax.tree.leaves(specs, is_leaf=is_spec), strict=True))

    def spec_of(path: str) -> PartitionSpec:
        names = [name for name in by_name if f".{path}".endswith(f".{name}")]
        return by_name[max(names, key=len)] if names else everywhere

    placed = jax.tree.unflatten(jax.tree.structure(state.optimizer), map(spec_of, leaves_by_name(state.optimizer)))
    averages = dict.fromkeys(state.averages, specs)
    return eqx.tree_at(lambda tree: (tree.params, tree.optimizer, tree.averages), copied, (specs, placed, averages))


def initial_state(
    config: ModelConfig,
    seed: int,
    mesh: Mesh,
    *,
    averages: Collection[str] = (),
    skip_window_steps: int = 0,
    optimizer: Optimizer = ADAMW,
) -> TrainState:
    """Return the state before the first step, equal on every mesh; `averages` are names."""
    check_placement(config, mesh)
    make = _initialization(config, mesh, tuple(sorted(averages)), skip_window_steps, optimizer)
    return make(jax.random.key_data(_root(seed)))


def abstract_state(
    config: ModelConfig,
    *,
    averages: Collection[str] = (),
    skip_window_steps: int = 0,
    optimizer: Optimizer = ADAMW,
) -> TrainState:
    """Return the state's tree with shapes and dtypes only; nothing is made."""
    make = functools.partial(_first_state, config, optimizer, averages=averages, skip_window_steps=skip_window_steps)
    return jax.eval_shape(make, jax.ShapeDtypeStruct((2,), np.uint32))


def placed_shapes(
    config: ModelConfig,
    mesh: Mesh,
    averages: Collection[str],
    skip_window_steps: int,
    optimizer: Optimizer = ADAMW,
) -> TrainState:
    """Return the state's tree with shapes and shardings on this mesh, to load a checkpoint."""
    check_placement(config, mesh)
    shapes = abstract_state(config, averages=averages, skip_window_steps=skip_window_steps, optimizer=optimizer)
    return jax.tree.map(
        lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
        shapes,
        shardings(state_specs(shapes, config), mesh),
    )


@functools.cache
def _initialization(
    config: ModelConfig, mesh: Mesh, averages: tuple[str, ...], skip_window_steps: int, optimizer: Optimizer
) -> Callable:
    """Return the program that makes the first state; the seed is its argument, so that another one compiles nothing."""
    make = functools.partial(_first_state, config, optimizer, averages=averages, skip_window_steps=skip_window_steps)
    shapes = abstract_state(config, averages=averages, skip_window_steps=skip_window_steps, optimizer=optimizer)
    return jax.jit(make, out_shardings=shardings(state_specs(shapes, config), mesh))


def _root(seed: int) -> Key[Array, ""]:
    return jax.random.key(seed, impl="threefry2x32")


def _first_state(
    config: ModelConfig,
    optimizer: Optimizer,
    key: UInt32[Array, "2"],
    *,
    averages: Collection[str],
    skip_window_steps: int,
) -> TrainState:
    root = jax.random.wrap_key_data(key, impl="threefry2x32")
    model = config.build()
    params = model.init(jax.random.fold_in(root, INITIALIZATION))
    return TrainState(
        params=params,
        optimizer=optimizer.build(model).init(params),
        averages={name: jax.tree.map(jnp.copy, params) for name in averages},
        key=key,
        history=empty_history(skip_window_steps) if skip_window_steps else None,
    )


def initial_fields(like: TrainState, seed: int, fields: Collection[str]) -> dict[str, Any]:
    """Return those of the `fields` "optimizer", "key" and "history" as they are before the first step.

    `like` has the shapes and shardings of the arrays.
    """
    history = empty_history(like.skip_window_steps) if like.skip_window_steps else None
    values = {"key": jax.random.key_data(_root(seed)), "history": history}
    return {
        field: jax.tree.map(_placed, values[field], getattr(like, field)) if field in values else _zeros(like, field)
        for field in fields
    }


def _zeros(like: TrainState, field: str) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), getattr(like, field))


def _placed(value: Array, like: jax.ShapeDtypeStruct) -> Array:
    whole = np.asarray(value)
    return jax.make_array_from_callback(whole.shape, like.sharding, lambda index: whole[index])


def with_averages(state: TrainState, names: Collection[str]) -> TrainState:
    """Return the state with the averages `names`: its own ones, and copies of the weights for the others.

    The copies are real ones, since the train step donates its input.
    """
    kept = state.averages
    averages = {name: kept[name] if name in kept else jax.tree.map(jnp.copy, state.params) for name in sorted(names)}
    return dataclasses.replace(state, averages=averages)


def averaged(average: TreeT, params: TreeT, decay: Float32[Array, ""]) -> TreeT:
    """Return `decay * average + (1 - decay) * params`; a decay of 1 returns the average, bit for bit."""
    return jax.tree.map(lambda old, new: jnp.where(decay == 1, old, decay * old + (1 - decay) * new), average, params)


def all_averaged(averages: Mapping[str, TreeT], params: TreeT, decays: Float32[Array, "averages"]) -> dict[str, TreeT]:
    """Return every average after a training step; `decays` are in the order of the sorted names."""
    return {name: averaged(averages[name], params, decays[index]) for index, name in enumerate(sorted(averages))}
