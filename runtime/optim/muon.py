"""Muon on shards: the momentum of each matrix of the layers, made orthogonal by optax's Newton-Schulz iterations.

A device needs whole matrices. Along axes that divide the number of layers, an all-to-all gives each device its own
layers. Along the other axes, matrices are gathered one layer at a time, and every device repeats the same work.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from runtime.model.computation import matmul_precision
from runtime.model.model import STACKED, Model, Params, leaves_by_name, map_tensors
from runtime.optim.adamw import adam_direction, clip_by_norm, decayed_step
from runtime.optim.optimizer import Muon, dealt_axes
from runtime.parallel.collectives import splits
from runtime.parallel.mesh import COPY_AXES

Flat = Float[Array, "layers ..."]
"""Matrices of each layer as one row of numbers, or as one row for each device that has a block of them."""
Share = Float[Array, "share devices ..."]


class MuonState(NamedTuple):
    """The state of Muon; each field has the tree of the parameters without the tensors of the other field."""

    momentum: Params
    adam: optax.ScaleByAdamState


def muon(settings: Muon, model: Model, axis_sizes: Mapping[str, int]) -> optax.GradientTransformationExtraArgs:
    """Return the transformation; see `Optimizer.build`."""

    def init(params: Params) -> MuonState:
        matrices, others = _parted(model, params)
        return MuonState(optax.tree.zeros_like(matrices), optax.scale_by_adam().init(others))

    def update(
        gradients: Params, state: MuonState, params: Params | None = None, **numbers: Any
    ) -> tuple[Params, MuonState]:
        clipped = clip_by_norm(gradients, numbers["grad_norm"], numbers["max_norm"])
        matrices, others = _parted(model, clipped)
        direction, adam = adam_direction(others, state.adam, numbers)
        momentum = optax.tree.update_moment(matrices, state.momentum, settings.beta, 1)
        ahead = _nesterov(matrices, momentum, settings.beta, adam.count)
        orthogonal = _orthogonal(ahead, settings, model, axis_sizes)
        step = decayed_step(model, eqx.combine(orthogonal, direction), params, numbers)
        return step, MuonState(momentum, adam)

    return optax.GradientTransformationExtraArgs(init, update)


def _parted(model: Model, tree: Params) -> tuple[Params, Params]:
    """Return the matrices of the layers, and all other tensors."""
    is_matrix = map_tensors(model, lambda name, _, leaf: name.startswith(STACKED) and leaf.ndim == 3, tree)
    matrices, others = eqx.partition(tree, is_matrix)
    return matrices, others


def _nesterov(gradients: Params, momentum: Params, beta: float, count: Array) -> Params:
    """Return the momentum one step ahead, both parts without their bias (arXiv:2502.16982, as optax computes it)."""
    with jax.numpy_dtype_promotion("standard"):
        ahead = optax.tree.bias_correction(momentum, beta, optax.safe_increment(count))
        now = optax.tree.bias_correction(gradients, beta, count)
    return jax.tree.map(lambda mean, gradient: beta * mean + (1 - beta) * gradient, ahead, now)


class _Matrix(NamedTuple):
    """Blocks of one matrix, [*axes, rows, columns], and how they form the whole."""

    blocks: tuple[int, ...]
    order: tuple[int, ...]
    """Order of the dimensions of `blocks` in which rows come first."""
    shape: tuple[int, int]

    @classmethod
    def of(cls, name: str, part: tuple[int, int], spec: PartitionSpec, axes: Mapping[str, int]) -> "_Matrix":
        """Return the matrix whose parts are split by `spec`, its blocks in the order of `axes`."""
        split, names = splits(spec, dict.fromkeys(COPY_AXES, 1) | dict(axes)), list(axes)
        if len(split) != len(axes):
            raise ValueError(
                f"{name}: the placement {spec} does not split this matrix over all of {names}, as Muon requires; split "
                "the matrix over them, or use AdamW: optimizer=None."
            )
        rows, columns = ([names.index(axis) for dimension, axis in split if dimension == which] for which in (0, 1))
        order = (*rows, len(names), *columns, len(names) + 1)
        blocks = (*axes.values(), *part)
        num_rows = math.prod(blocks[index] for index in order[: len(rows) + 1])
        return cls(blocks, order, (num_rows, math.prod(blocks) // num_rows))

    def whole(self, flat: Array) -> Array:
        """Return the whole matrix of flat blocks."""
        return flat.reshape(self.blocks).transpose(self.order).reshape(self.shape)

    def flat(self, whole: Array) -> Array:
        """Return the blocks of a whole matrix, each flat."""
        ordered = whole.reshape([self.blocks[index] for index in self.order])
        return ordered.transpose(np.argsort(self.order)).reshape(*self.blocks[:-2], -1)


def _orthogonal(matrices: Params, settings: Muon, model: Model, axis_sizes: Mapping[str, int]) -> Params:
    """Return the shards of the orthogonal factors, scaled by the shapes of the whole matrices."""
    named, table = leaves_by_name(matrices), model.tensors()
    if not named:
        return matrices
    sizes = {axis: axis_sizes[axis] for axis in COPY_AXES if axis_sizes.get(axis, 1) > 1}
    num_layers = model.config.num_hidden_layers
    dealt = [list(sizes)[index] for index in dealt_axes(num_layers, list(sizes.values()))]
    gathered = [axis for axis in sizes if axis not in dealt]
    axes = {axis: sizes[axis] for axis in (*reversed(gathered), *reversed(dealt))}
    wholes = [_Matrix.of(name, leaf.shape[1:], table[name].spec, axes) for name, leaf in named.items()]
    ends = list(np.cumsum([math.prod(leaf.shape[1:]) for leaf in named.values()])[:-1])

    def one_layer(_: None, flat: Array) -> tuple[None, Array]:
        for axis in gathered:
            flat = lax.all_gather(flat, axis)
        parts = zip(wholes, jnp.split(flat, ends, axis=-1), strict=True)
        flat = jnp.concatenate([one.flat(_newton_schulz(one.whole(part), settings)) for one, part in parts], axis=-1)
        for axis in reversed(gathered):
            flat = lax.dynamic_index_in_dim(flat, lax.axis_index(axis), keepdims=False)
        return None, flat

    flat = jnp.concatenate([leaf.astype(settings.dtype).reshape(num_layers, -1) for leaf in named.values()], axis=1)
    for axis in dealt:
        flat = _deal_out(flat, axis, sizes[axis])
    flat = lax.scan(one_layer, None, flat)[1]
    for axis in reversed(dealt):
        flat = _give_back(flat, axis)
    shards = [
        part.astype(jnp.float32).reshape(leaf.shape) * _scale(whole.shape, settings)
        for part, leaf, whole in zip(jnp.split(flat, ends, axis=1), named.values(), wholes, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(matrices), shards)


def _deal_out(flat: Flat, axis: str, size: int) -> Share:
    """Return this device's share of the layers, with the blocks of all devices of the axis as its second dimension."""
    shares = flat.reshape(size, -1, *flat.shape[1:])
    return jnp.moveaxis(lax.all_to_all(shares, axis, split_axis=0, concat_axis=0), 0, 1)


def _give_back(share: Share, axis: str) -> Flat:
    """Return this device's block of all layers: the inverse of `_deal_out`."""
    shares = lax.all_to_all(jnp.moveaxis(share, 1, 0), axis, split_axis=0, concat_axis=0)
    return shares.reshape(-1, *share.shape[2:])


def _newton_schulz(matrix: Float[Array, "rows columns"], settings: Muon) -> Float[Array, "rows columns"]:
    """Return an approximate orthogonal factor of a matrix, by optax's Muon without momentum."""
    iterations = optax.contrib.scale_by_muon(ns_steps=settings.ns_steps, beta=0.0, nesterov=False)
    with jax.numpy_dtype_promotion("standard"), matmul_precision(settings.dtype):
        found: Array = iterations.update(matrix, iterations.init(matrix))[0]
    return found


def _scale(shape: tuple[int, int], settings: Muon) -> float:
    rows, columns = shape
    if settings.consistent_rms is None:
        return math.sqrt(max(1.0, columns / rows))
    return settings.consistent_rms * math.sqrt(max(rows, columns))
