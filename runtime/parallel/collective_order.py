"""One order for the collectives of a CPU's devices, where a program says in no other way which comes first.

XLA's runtime for CPUs begins an operation when its arguments are there, and takes a loop for done when it has begun.
JAX gives all collectives one channel. So a collective that stands behind a loop, and takes nothing from it, meets one
inside the loop on another device: each is handed the other's array, the process ends, or it hangs. Here such a
collective is made to take something: an element of what has to come first, by a `where` whose condition never holds,
which the compiler cannot know. (jaxlib 0.10.2. TPUs and GPUs run collectives in the order of the program.)
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
    """Puts a value behind others; where the order is that of the program and not `by_data`, every method does nothing.

    `tokens` are ids, of which none is negative; the compiler cannot know that of int32, and a TypeError refuses others.
    """

    by_data: bool

    def after(self, value: ValueT, earlier: Any, tokens: Ids) -> ValueT:
        """`value`, each leaf of which is to be had only when every leaf of `earlier` is."""
        return _after(value, earlier, _never(tokens)) if self.by_data else value

    def before_and_after(self, value: ValueT, later: LaterT, tokens: Ids) -> tuple[ValueT, LaterT]:
        """Both, `later` after `value`; in the backward pass, the gradient of `value` after that of `later`."""
        return _before_and_after(value, later, _never(tokens)) if self.by_data else (value, later)


def _never(tokens: Ids) -> Bool[Array, ""]:
    if tokens.dtype != jnp.int32:  # of an unsigned type the compiler knows that none is negative
        raise TypeError(f"tokens are {tokens.dtype}; pass them as int32.")
    return tokens.reshape(-1)[0] < 0


def _after(value: ValueT, earlier: Any, never: Bool[Array, ""]) -> ValueT:
    # Of an array as it is: else the compiler goes by elements, and the first of a concatenation is of one part only.
    firsts = [lax.optimization_barrier(leaf).reshape(-1)[0].astype(jnp.bool_) for leaf in jax.tree.leaves(earlier)]
    taken = jnp.sum(jnp.stack(firsts), dtype=jnp.int32)
    return jax.tree.map(lambda leaf: jnp.where(never, taken.astype(leaf.dtype), leaf), value)


@jax.custom_vjp
def _before_and_after(value: ValueT, later: LaterT, never: Bool[Array, ""]) -> tuple[ValueT, LaterT]:
    return value, _after(later, value, never)


def _forward(value: ValueT, later: LaterT, never: Bool[Array, ""]) -> tuple[tuple[ValueT, LaterT], Bool[Array, ""]]:
    return _before_and_after(value, later, never), never


def _backward(never: Bool[Array, ""], gradients: tuple[ValueT, LaterT]) -> tuple[ValueT, LaterT, None]:
    of_value, of_later = gradients
    return _after(of_value, of_later, never), of_later, None


_before_and_after.defvjp(_forward, _backward)
