"""Exponential moving average of the weights: the arithmetic (the setting is `ema.Ema`)."""

from typing import TypeVar

import jax
from jaxtyping import Array, Float32

TreeT = TypeVar("TreeT")


def averaged(average: TreeT, params: TreeT, decay: Float32[Array, ""]) -> TreeT:
    """`decay * average + (1 - decay) * params`: `decay` is the share that is kept.

    Weights that jump from 0 to 1 move the average to 1 - decay. Two public runs had it the other way round.
    """
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, average, params)
