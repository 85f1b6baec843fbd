"""Spread: how the tokens of a row lie over the `context` axis, and tokens and heads over the `model` axis.

Only for use inside `jax.shard_map`. A device holds an equal stretch of each of its rows (`context`). Between the parts
of a layer each device of the `model` axis holds an equal share of the tokens; inside attention and MLP it holds all of
them, and its own heads or columns:

    norm, gather_tokens, products with own columns, attention of own heads, product with own rows, scatter_tokens

`scatter_tokens` adds the partial sums. Every operation here is linear and differentiated as it stands: the gradient of
a gather is a scatter and the other way round, so each token's work is done once and no gradient is counted twice.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped


@dataclasses.dataclass(frozen=True)
class Spread:
    """Devices along the two axes; with one each, every method gives its argument back."""

    model: int = 1
    context: int = 1

    def own_tokens(self, values: Shaped[Array, "tokens *rest"]) -> Shaped[Array, "own *rest"]:
        """This device's share of what every device of the model axis holds alike."""
        if self.model == 1:
            return values
        size = values.shape[0] // self.model
        return lax.dynamic_slice_in_dim(values, lax.axis_index("model") * size, size)

    def gather_tokens(self, values: Shaped[Array, "own *rest"]) -> Shaped[Array, "tokens *rest"]:
        """The tokens of all devices of the model axis."""
        return values if self.model == 1 else lax.all_gather(values, "model", tiled=True)

    def scatter_tokens(self, partial: Shaped[Array, "tokens *rest"]) -> Shaped[Array, "own *rest"]:
        """The sum over the model axis, of which each device takes its share of the tokens."""
        return partial if self.model == 1 else lax.psum_scatter(partial, "model", scatter_dimension=0, tiled=True)

    def gather_sequence(self, values: Shaped[Array, "batch own *rest"]) -> Shaped[Array, "batch sequence *rest"]:
        """Whole rows, from the stretches of the context axis."""
        return values if self.context == 1 else lax.all_gather(values, "context", axis=1, tiled=True)

    def own_positions(self, values: Shaped[Array, "sequence *rest"]) -> Shaped[Array, "own *rest"]:
        """Of figures of each position of a row, those of this device's stretch."""
        if self.context == 1:
            return values
        size = values.shape[0] // self.context
        return lax.dynamic_slice_in_dim(values, lax.axis_index("context") * size, size)

    def next_in_row(self, values: Shaped[Array, "batch own"]) -> Shaped[Array, "batch own"]:
        """What stands one position later in the row; after its last position, whatever."""
        if self.context == 1:
            return jnp.roll(values, -1, axis=1)
        to_the_left = [(index, (index - 1) % self.context) for index in range(self.context)]
        first_of_next = lax.ppermute(values[:, :1], "context", to_the_left)
        return jnp.concatenate([values[:, 1:], first_of_next], axis=1)

    def by_stretch(self, own_length: int, compute: Callable[[int], Array]) -> Array:
        """`compute(first_row)` for the position at which this device's stretch begins.

        The position is a number when the program is built, one branch a stretch, so that a kernel leaves out what its
        rows cannot see.
        """
        if self.context == 1:
            return compute(0)
        branches = [lambda index=index: compute(index * own_length) for index in range(self.context)]
        return lax.switch(lax.axis_index("context"), branches)


ALONE = Spread()
