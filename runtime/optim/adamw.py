"""AdamW (arXiv:1711.05101) with clipping by global norm, on shards: every hyperparameter is a traced scalar.

`parameters <- parameters - learning_rate * (mu_hat / (sqrt(nu_hat) + eps) + weight_decay * parameters)`, the decay
on matrices of the layers and on an untied head only: not on embeddings, norms or biases (the recipe's mask).
"""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from runtime.model.llama import Llama

Scalar = Float32[Array, ""]
TreeT = TypeVar("TreeT")

_DECAYED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


class Update(NamedTuple):
    """What one update leaves behind; `step` is what was added to the parameters."""

    params: Llama
    mu: Llama
    nu: Llama
    step: Llama


def decay_mask(params: Llama) -> Llama:
    """True where weight decay applies, by name of the field, so that a new tensor is not decayed by accident."""

    def is_decayed(path: tuple, leaf: object) -> bool:
        return path[-1].name in _DECAYED

    return jax.tree_util.tree_map_with_path(is_decayed, params)


def clip_by_global_norm(gradients: TreeT, norm: Scalar, max_norm: Scalar) -> TreeT:
    """Scales by `max_norm / norm` where the norm (over all devices) is larger; otherwise bitwise as is."""
    return jax.tree.map(lambda leaf: jnp.where(norm < max_norm, leaf, (leaf / norm) * max_norm), gradients)


def adamw(
    params: Llama,
    gradients: Llama,
    mu: Llama,
    nu: Llama,
    *,
    count: Int32[Array, ""],
    learning_rate: Scalar,
    weight_decay: Scalar,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
) -> Update:
    """One update; `count` is the number of this one, from 1. Element by element, so shards need no communication."""
    new_mu = jax.tree.map(lambda moment, gradient: b1 * moment + (1 - b1) * gradient, mu, gradients)
    new_nu = jax.tree.map(lambda moment, gradient: b2 * moment + (1 - b2) * jnp.square(gradient), nu, gradients)
    exponent = count.astype(jnp.float32)
    mu_share, nu_share = 1 - b1**exponent, 1 - b2**exponent

    def step_of(parameter: Array, first: Array, second: Array, is_decayed: bool) -> Array:
        direction = (first / mu_share) / (jnp.sqrt(second / nu_share) + eps)
        return -learning_rate * (direction + weight_decay * parameter if is_decayed else direction)

    step = jax.tree.map(step_of, params, new_mu, new_nu, decay_mask(params))
    return Update(params=jax.tree.map(jnp.add, params, step), mu=new_mu, nu=new_nu, step=step)
