"""One order for the collectives of a CPU's devices, where a program says in no other way which comes first.

XLA's runtime for CPUs begins an operation when its arguments are there, and takes a loop for done when it has begun.
JAX gives all collectives one channel. So a collective that stands behind a loop, and takes nothing from it, meets one
inside the loop on another device: each is handed the other's array, or the process hangs. Here it is made to take
something: elements of what has to come first, by a choice that always falls on the other side. (Seen with jaxlib
0.10.2: one step in two hundred was wrong. TPUs and GPUs run collectives in the order of the program.)
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

ValueT = TypeVar("ValueT")
LaterT = TypeVar("LaterT")
Tokens = Int32[Array, "batch sequence"]


@dataclasses.dataclass(frozen=True)
class CollectiveOrder:
    """The order of collectives, of the program or made of data; for `is_of_program`, every method does nothing.

    `tokens` are ids, of which none is negative; the compiler cannot know that.
    """

    is_of_program: bool = True

    def after(self, value: ValueT, earlier: Any, tokens: Tokens) -> ValueT:
        """`value`, each leaf of which is to be had only when every leaf of `earlier` is."""
        return value if self.is_of_program else _after(value, earlier, tokens.reshape(-1)[0] < 0)

    def later(self, value: ValueT, later: LaterT, tokens: Tokens) -> tuple[ValueT, LaterT]:
        """Both, `later` after `value`; in the backward pass, the gradient of `value` after that of `later`."""
        return (value, later) if self.is_of_program else _later(value, later, tokens.reshape(-1)[0] < 0)


def _after(value: ValueT, earlier: Any, never: Bool[Array, ""]) -> ValueT:
    # Both ends: what came from the next device is the last column of an array, and the compiler goes by elements.
    ends = [leaf.reshape(-1)[end].astype(jnp.bool_) for leaf in jax.tree.leaves(earlier) for end in (0, -1)]
    taken = jnp.sum(jnp.stack(ends), dtype=jnp.int32)
    return jax.tree.map(lambda leaf: jnp.where(never, taken.astype(leaf.dtype), leaf), value)


@jax.custom_vjp
def _later(value: ValueT, later: LaterT, never: Bool[Array, ""]) -> tuple[ValueT, LaterT]:
    return value, _after(later, value, never)


def _forward(value: ValueT, later: LaterT, never: Bool[Array, ""]) -> tuple[tuple[ValueT, LaterT], Bool[Array, ""]]:
    return _later(value, later, never), never


def _backward(never: Bool[Array, ""], gradients: tuple[ValueT, LaterT]) -> tuple[ValueT, LaterT, None]:
    of_value, of_later = gradients
    return _after(of_value, of_later, never), of_later, None


_later.defvjp(_forward, _backward)
