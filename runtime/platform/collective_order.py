"""Collective order: one order for the collectives of CPU devices, where a program gives none.

XLA's runtime for CPUs starts an operation when its arguments are there, and JAX gives all collectives one channel. So a
collective behind a loop can meet one inside the loop on another device, and the process ends or hangs. Such a
collective is made to depend on an element of what must come first, by a `where` whose condition never holds, which the
compiler cannot know. (jaxlib 0.10.2. TPUs and GPUs run collectives in the order of the program.)
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Integer

ValueT = TypeVar("ValueT")
LaterT = TypeVar("LaterT")
Ids = Integer[Array, "batch sequence"]


@dataclasses.dataclass(frozen=True)
class CollectiveOrder:
    """Order of values; without `by_data`, where the program's order suffices, every method returns its argument.

    `tokens` are int32 ids that are never negative, which the compiler cannot know; other types raise TypeError.
    """

    by_data: bool

    def after(self, value: ValueT, earlier: Any, tokens: Ids) -> ValueT:
        """Return `value`, each leaf of it available only when every leaf of `earlier` is."""
        return _after(value, earlier, _never(tokens)) if self.by_data else value

    def before_and_after(self, value: ValueT, later: LaterT, tokens: Ids) -> tuple[ValueT, LaterT]:
        """Return both, `later` after `value`; backward, the gradient of `value` after that of `later`."""
        return _before_and_after(value, later, _never(tokens)) if self.by_data else (value, later)


def _never(tokens: Ids) -> Bool[Array, ""]:
    if tokens.dtype != jnp.int32:  # the compiler knows that no unsigned number is negative
        raise TypeError(f"tokens are {tokens.dtype}; pass them as int32.")
    return tokens.reshape(-1)[0] < 0


def _after(value: ValueT, earlier: Any, never: Bool[Array, ""]) -> ValueT:
    # Behind a barrier, or the compiler would follow single elements: the first of a concatenation is of one part only.
    firsts = [lax.optimization_barrier(leaf).reshape(-1)[0].astype(jnp.bool_) for leaf in jax.tree.leaves(earlier)]
    taken = jnp.sum(jnp.stack(firsts), dtype=jnp.int32)
    return jax.tree.map(lambda leaf: jnp.where(never, taken.astype(leaf.dtype), leaf), value)


@jax.custom_vjp
def _before_and_after(value: ValueT, later: LaterT, never: Bool[Array, ""]) -> tuple[ValueT, LaterT]:
    return value, _after(later, value, never)


def _forward(value: ValueT, later: LaterT, never: Bool[Array, ""]) -> tuple[tuple[ValueT, LaterT], Bool[Array, ""]]:
    return _before_and_after(value, later, never), never


def _backward(never: Bool[Array, ""], gradients: tuple[ValueT, LaterT]) -> tuple[ValueT, LaterT, None]:
    value_gradient, later_gradient = gradients
    return _after(value_gradient, later_gradient, never), later_gradient, None


_before_and_after.defvjp(_forward, _backward)
