"""Gate of a SwiGLU layer (arXiv:2002.05202), with two forms of its gradient.

With autodiff, XLA for CPUs writes sigmoid and silu as arrays, and reads them again for the product and for both
gradients, since it takes an exponential as too expensive to repeat. At a model's widths the arrays cost more.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

GateGradient = Literal["plain", "recomputed"]
"""Autodiff's; or, for CPUs, one loop for the value and one for each gradient, each with its own exponential."""

Gate = Float[Array, "tokens intermediate_size"]


def gated(gate: Gate, up: Gate, *, gradient: GateGradient) -> Gate:
    """Return `silu(gate) * up`; the form of the gradient changes rounding only."""
    return jax.nn.silu(gate) * up if gradient == "plain" else _gated(gate, up)


@jax.custom_vjp
def _gated(gate: Gate, up: Gate) -> Gate:
    return (_silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def _forward(gate: Gate, up: Gate) -> tuple[Gate, tuple[Gate, Gate]]:
    return _gated(gate, up), (gate, up)


def _backward(kept: tuple[Gate, Gate], cotangent: Gate) -> tuple[Gate, Gate]:
    gate, up = kept
    # Behind a barrier each, or the compiler would merge the three sigmoids.
    wide, gated_gradient = _apart(gate), cotangent.astype(jnp.float32)
    sigmoid = 1 / (1 + jnp.exp(-wide))
    gate_gradient = gated_gradient * up.astype(jnp.float32) * (sigmoid * (1 + wide * (1 - sigmoid)))
    up_gradient = gated_gradient * _silu(_apart(gate, gate_gradient))
    return gate_gradient.astype(gate.dtype), up_gradient.astype(up.dtype)


def _silu(gate: Gate) -> Gate:
    return gate / (1 + jnp.exp(-gate))


def _apart(gate: Gate, *others: Array) -> Float[Array, "tokens intermediate_size"]:
    return lax.optimization_barrier((gate, *others))[0].astype(jnp.float32)


_gated.defvjp(_forward, _backward)
