"""The gate of a SwiGLU layer (arXiv:2002.05202), and two ways to its gradient.

Left to autodiff, XLA for CPUs writes sigmoid and silu as arrays of their own, and reads them again for the product and
for both gradients: each loop gives one array, and an exponential counts as too dear to be asked for twice. At the
widths of a model the arrays cost more than the exponentials.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

GateGradient = Literal["plain", "recomputed"]
"""As autodiff will; or, for CPUs, one loop for the value and one for each gradient, each with its own exponential."""

Gate = Float[Array, "tokens intermediate_size"]


def gated(gate: Gate, up: Gate, *, gradient: GateGradient) -> Gate:
    """`silu(gate) * up`; the way to the gradient changes nothing but rounding."""
    return jax.nn.silu(gate) * up if gradient == "plain" else _gated(gate, up)


@jax.custom_vjp
def _gated(gate: Gate, up: Gate) -> Gate:
    return (_silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(gate.dtype)


def _forward(gate: Gate, up: Gate) -> tuple[Gate, tuple[Gate, Gate]]:
    return _gated(gate, up), (gate, up)


def _backward(kept: tuple[Gate, Gate], cotangent: Gate) -> tuple[Gate, Gate]:
    gate, up = kept
    # Behind a barrier each, or the compiler would find the three sigmoids to be one.
    wide, of_gated = _apart(gate), cotangent.astype(jnp.float32)
    sigmoid = 1 / (1 + jnp.exp(-wide))
    of_gate = of_gated * up.astype(jnp.float32) * (sigmoid * (1 + wide * (1 - sigmoid)))
    of_up = of_gated * _silu(_apart(gate, of_gate))
    return of_gate.astype(gate.dtype), of_up.astype(up.dtype)


def _silu(gate: Gate) -> Gate:
    return gate / (1 + jnp.exp(-gate))


def _apart(gate: Gate, *others: Array) -> Float[Array, "tokens intermediate_size"]:
    return lax.optimization_barrier((gate, *others))[0].astype(jnp.float32)


_gated.defvjp(_forward, _backward)
