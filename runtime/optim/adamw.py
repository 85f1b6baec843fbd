"""AdamW on shards, of optax's parts; the clipping is ours, since the norm must be that of all devices.

`parameters <- parameters - learning_rate * (mu_hat / (sqrt(nu_hat) + eps) + weight_decay * parameters)`, the decay on
the tensors that the model's table marks. Element by element, so shards need no communication.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float32

from runtime.model.model import Model, Params, map_tensors

Scalar = Float32[Array, ""]
TreeT = TypeVar("TreeT")


def decay_mask(model: Model, params: Params) -> Params:
    """Return True for each tensor that decays.

    Raises:
        UnknownTensorError: the model does not say whether a tensor decays.
    """
    return map_tensors(model, lambda name, tensor, leaf: tensor.is_decayed, params)


def clip_by_norm(gradients: TreeT, norm: Scalar, max_norm: Scalar) -> TreeT:
    """Return the gradients times `max_norm / norm` where the norm is larger; otherwise bitwise as they are."""
    return jax.tree.map(lambda leaf: jnp.where(norm < max_norm, leaf, (leaf / norm) * max_norm), gradients)


def decayed_step(model: Model, direction: Params, params: Params, numbers: Mapping[str, Any]) -> Params:
    """Return the change of the parameters: the direction with weight decay, times the learning rate."""
    stateless = optax.chain(
        optax.add_decayed_weights(numbers["weight_decay"], decay_mask(model, params)),
        optax.scale_by_learning_rate(numbers["learning_rate"]),
    )
    step, _ = stateless.update(direction, stateless.init(params), params)
    return step


def adam_direction(
    gradients: Params, state: optax.OptState, numbers: Mapping[str, Any]
) -> tuple[Params, optax.OptState]:
    """Return Adam's direction for clipped gradients, and the moments after it."""
    with jax.numpy_dtype_promotion("standard"):  # optax takes b1 and b2 to the power of an integer
        adam = optax.scale_by_adam(numbers["b1"], numbers["b2"], numbers["eps"])
        found: tuple[Params, optax.OptState] = adam.update(gradients, state)
    return found


def adamw(model: Model) -> optax.GradientTransformationExtraArgs:
    """Return the transformation; see `Optimizer.build`."""

    def update(
        gradients: Params, state: optax.OptState, params: Params | None = None, **numbers: Any
    ) -> tuple[Params, optax.OptState]:
        clipped = clip_by_norm(gradients, numbers["grad_norm"], numbers["max_norm"])
        direction, state = adam_direction(clipped, state, numbers)
        return decayed_step(model, direction, params, numbers), state

    return optax.GradientTransformationExtraArgs(optax.scale_by_adam().init, update)
