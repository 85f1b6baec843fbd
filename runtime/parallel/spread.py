"""Spread: the split of a row's tokens over the `context` axis, and of tokens and heads over the `model` axis.

Only for use inside `jax.shard_map`. A device has an equal part of each of its rows (`context`). Between the parts of a
layer each device of the `model` axis has an equal share of the tokens; inside attention and MLP it has all of them, and
its own heads or columns:

    norm, gather_tokens, products with own columns, attention of own heads, product with own rows, scatter_tokens

`scatter_tokens` adds the partial sums. Autodiff is right: the gradient of a gather is a scatter and the other way
round, so no gradient counts twice.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped


@dataclasses.dataclass(frozen=True)
class Spread:
    """Devices along the two axes; with one each, every method returns its argument."""

    model: int = 1
    context: int = 1

    def own_tokens(self, values: Shaped[Array, "tokens *rest"]) -> Shaped[Array, "own *rest"]:
        """Return this device's share of values that every device of the model axis has."""
        if self.model == 1:
            return values
        size = values.shape[0] // self.model
        return lax.dynamic_slice_in_dim(values, lax.axis_index("model") * size, size)

    def gather_tokens(self, values: Shaped[Array, "own *rest"]) -> Shaped[Array, "tokens *rest"]:
        """Return the tokens of all devices of the model axis."""
        return values if self.model == 1 else lax.all_gather(values, "model", tiled=True)

    def scatter_tokens(self, partial: Shaped[Array, "tokens *rest"]) -> Shaped[Array, "own *rest"]:
        """Return this device's share of the tokens of the sum over the model axis."""
        return partial if self.model == 1 else lax.psum_scatter(partial, "model", scatter_dimension=0, tiled=True)

    def gather_sequence(self, values: Shaped[Array, "batch own *rest"]) -> Shaped[Array, "batch sequence *rest"]:
        """Return whole rows, from the parts of the context axis."""
        return values if self.context == 1 else lax.all_gather(values, "context", axis=1, tiled=True)

    def own_positions(self, values: Shaped[Array, "sequence *rest"]) -> Shaped[Array, "own *rest"]:
        """Return this device's part of values for each position of a row."""
        if self.context == 1:
            return values
        size = values.shape[0] // self.context
        return lax.dynamic_slice_in_dim(values, lax.axis_index("context") * size, size)

    def next_in_row(self, values: Shaped[Array, "batch own"]) -> Shaped[Array, "batch own"]:
        """Return the values one position later in the row; undefined at its last position."""
        if self.context == 1:
            return jnp.roll(values, -1, axis=1)
        to_the_left = [(index, (index - 1) % self.context) for index in range(self.context)]
        first_of_next = lax.ppermute(values[:, :1], "context", to_the_left)
        return jnp.concatenate([values[:, 1:], first_of_next], axis=1)

    def by_part(self, own_length: int, compute: Callable[[int], Array]) -> Array:
        """Return `compute(first_row)` for the first position of this device's part of a row.

        The position is a Python number, in one branch a part, so that a kernel skips keys that its rows cannot see.
        """
        if self.context == 1:
            return compute(0)
        branches = [lambda index=index: compute(index * own_length) for index in range(self.context)]
        return lax.switch(lax.axis_index("context"), branches)


ALONE = Spread()
