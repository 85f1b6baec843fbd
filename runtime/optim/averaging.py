"""Exponential moving averages of the weights: the arithmetic (the setting is `ema.Ema`)."""

from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

TreeT = TypeVar("TreeT")


def averaged(average: TreeT, params: TreeT, decay: Float32[Array, ""]) -> TreeT:
    """Return `decay * average + (1 - decay) * params`; a decay of 1 returns the average, bit for bit."""
    return jax.tree.map(lambda old, new: jnp.where(decay == 1, old, decay * old + (1 - decay) * new), average, params)


def all_averaged(averages: Mapping[str, TreeT], params: TreeT, decays: Float32[Array, "averages"]) -> dict[str, TreeT]:
    """Return every average after an update; `decays` are in the order of the sorted names."""
    return {name: averaged(averages[name], params, decays[index]) for index, name in enumerate(sorted(averages))}
