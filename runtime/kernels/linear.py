"""Rows times a weight, with two forms of the weight's gradient.

XLA for CPUs uses its fast library for products whose left side is summed over its last axis. A weight's gradient,
`rows^T x cotangent`, is summed over the first, and runs at two thirds of the speed. A transposed copy of the rows,
which products of the same rows share, costs less.
"""

import functools
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from runtime.kernels.scattered_product_tpu import scattered_product

WeightGradient = Literal["plain", "transposed"]
"""Form of the gradient: XLA's own; or, for CPUs, from a transposed copy of the rows."""

Rows = Float[Array, "tokens fan_in"]
Weight = Float[Array, "fan_in fan_out"]
Cotangent = Float[Array, "tokens fan_out"]


class Scattering(eqx.Module):
    """A weight without a gradient: the product that forms it scatters it over the first axis, and passes it to `part`,
    a stand-in for the rows of this device."""

    weight: Weight
    part: Float[Array, "part other"]
    dimension: int = eqx.field(static=True)
    """Dimension of the weight that is scattered."""
    axis: str = eqx.field(static=True)


def linear(rows: Rows, weight: Weight | Scattering, *, way: WeightGradient) -> Cotangent:
    """Return `rows @ weight`; the form of the gradient changes rounding only."""
    if isinstance(weight, Scattering):
        return _scattering(rows, weight.weight, weight.part, weight.dimension, weight.axis)
    return rows @ weight if way == "plain" else _linear(rows, weight)


def weight_gradient(
    rows: Rows,
    cotangent: Cotangent,
    *,
    way: WeightGradient,
    preferred_element_type: jax.typing.DTypeLike | None = None,
) -> Weight:
    """Return `rows^T x cotangent`, in `preferred_element_type` where it is not the arguments' dtype."""
    product = partial(jnp.einsum, preferred_element_type=preferred_element_type)
    if way == "plain":
        return product("ti,to->io", rows, cotangent)
    return product("it,to->io", as_it_is(rows.T), cotangent)


def as_it_is(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return values behind a barrier, or the compiler would make a change of axes part of their consumer: slow on a
    CPU."""
    return lax.optimization_barrier(values)


@jax.custom_vjp
def _linear(rows: Rows, weight: Weight) -> Cotangent:
    return rows @ weight


def _forward(rows: Rows, weight: Weight) -> tuple[Cotangent, tuple[Rows, Weight]]:
    return rows @ weight, (rows, weight)


def _backward(kept: tuple[Rows, Weight], cotangent: Cotangent) -> tuple[Rows, Weight]:
    rows, weight = kept
    return cotangent @ weight.T, weight_gradient(rows, cotangent, way="transposed")


_linear.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _scattering(rows: Rows, weight: Weight, part: Float[Array, "part other"], dimension: int, axis: str) -> Cotangent:
    return rows @ weight


def _scattering_forward(
    rows: Rows, weight: Weight, part: Array, dimension: int, axis: str
) -> tuple[Cotangent, tuple[Rows, Weight, Array]]:
    return rows @ weight, (rows, weight, part)


def _scattering_backward(
    dimension: int, axis: str, kept: tuple[Rows, Weight, Array], cotangent: Cotangent
) -> tuple[Rows, None, Array]:
    rows, weight, part = kept
    sides = (rows, cotangent) if dimension == 0 else (cotangent, rows)
    return cotangent @ weight.T, None, scattered_product(*sides, axis=axis, sum_dtype=part.dtype)


_scattering.defvjp(_scattering_forward, _scattering_backward)
