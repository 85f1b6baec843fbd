"""Parts that architectures share: initial values, the norm, and the loop over layers."""

import math
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Key

from runtime.model.initialization import Initialization

HiddenT = TypeVar("HiddenT")
ParamsT = TypeVar("ParamsT")


def first_values(
    key: Key[Array, ""],
    name: str,
    shape: tuple[int, ...],
    initialization: Initialization,
    *,
    fan_in: int,
    residual_layers: int | None = None,
) -> Float32[Array, "..."]:
    """Return initial values of a matrix. Those of a smaller shape are the first of those of a larger one.

    Keyed by name and not by position, so that a new parameter does not change the initial values of the others.
    `shape` may be that of all layers' matrices; `fan_in` is the number of inputs of one. `residual_layers` is the
    number of the model's layers, for a matrix that adds to the residual stream.
    """
    named_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    deviation = initialization.nominal_deviation(fan_in)
    if initialization.depth_scale == "residual" and residual_layers is not None:
        deviation /= math.sqrt(2 * residual_layers)
    if initialization.truncated_at is None:
        return deviation * jax.random.normal(named_key, shape, jnp.float32)
    limit = initialization.truncated_at
    return deviation * jax.random.truncated_normal(named_key, -limit, limit, shape, jnp.float32)


def rms_norm(
    values: Float[Array, "*lead size"], weight: Float[Array, "size"], eps: float
) -> Float[Array, "*lead size"]:
    """Return the root-mean-square norm (arXiv:1910.07467), formed in float32; the weight applies in `values`' dtype."""
    wide = values.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return normed.astype(values.dtype) * weight.reshape((1,) * (values.ndim - 1) + weight.shape)


def over_layers(
    layer: Callable[[HiddenT, Any], tuple[HiddenT, Any]],
    hidden: HiddenT,
    layers: Any,
    by_layer: Any,
    *,
    unroll: int,
) -> tuple[HiddenT, Any]:
    """Run `layer(hidden, (weights, others))` over all layers; return the hidden states and what each layer returned.

    Args:
        layer: one layer.
        hidden: input of the first layer.
        layers: weights with a leading axis for layers; or, written out, a tuple with an entry a layer.
        by_layer: others of the same form.
        unroll: layers in the body of the loop.
    """
    if not isinstance(layers, tuple):
        return lax.scan(layer, hidden, (layers, by_layer), unroll=unroll)
    found = []
    for number, weights in enumerate(layers):
        others = None if by_layer is None else tuple(part[number] for part in by_layer)
        hidden, kept = layer(hidden, (weights, others))
        found.append(kept)
    return hidden, tuple(zip(*found, strict=True))


def written_out(params: ParamsT, dtype: DTypeLike) -> ParamsT:
    """Return parameters in `dtype` with `layers` as a tuple, an entry a layer.

    A loop over stacked layers copies each layer's part first. Where a new token reads every weight once, on CPU, the
    copy takes a fifth of the time.
    """
    layers: Any = params.layers  # type: ignore[attr-defined]
    num_layers = jax.tree.leaves(layers)[0].shape[0]

    def own(number: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[number].astype(dtype), layers)

    apart = tuple(map(own, range(num_layers)))
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype), eqx.tree_at(lambda tree: tree.layers, params, None))
    return eqx.tree_at(lambda tree: tree.layers, cast, apart, is_leaf=lambda leaf: leaf is None)
