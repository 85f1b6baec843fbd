"""A train step as one would write it by hand, no runtime around it: what ours is compared with.

The laptop's model, its loss and its AdamW in plain `jax.numpy`: full logits, autodiff, one `jit`, buffers donated.
Parameters are those of `runtime.model.llama`, so that both steps can be given the same weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runtime.model.llama.config import LlamaConfig
from runtime.optim.adamw import decay_mask


def plain_step(config: LlamaConfig, frequencies: np.ndarray) -> Callable:
    """Return `step(params, mu, nu, count, tokens, learning_rate) -> (params, mu, nu, loss)`; decay 0.1, clip 1."""
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def norm(values: Any, weight: Any) -> Any:
        return values * jax.lax.rsqrt(jnp.mean(values**2, axis=-1, keepdims=True) + config.rms_norm_eps) * weight

    def turn(values: Any, cosine: Any, sine: Any) -> Any:
        first, second = jnp.split(values, 2, axis=-1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def loss_of(params: Any, tokens: Any) -> Any:
        batch, sequence = tokens.shape
        angles = jnp.arange(sequence)[:, None] * frequencies[None, :]
        cosine, sine = jnp.cos(angles)[None, :, None, :], jnp.sin(angles)[None, :, None, :]
        hidden = params.embed_tokens[tokens]

        def layer(hidden: Any, weights: Any) -> Any:
            normed = norm(hidden, weights.input_layernorm)
            query = turn((normed @ weights.q_proj).reshape(batch, sequence, heads, head_dim), cosine, sine)
            key = turn((normed @ weights.k_proj).reshape(batch, sequence, kv_heads, head_dim), cosine, sine)
            value = (normed @ weights.v_proj).reshape(batch, sequence, kv_heads, head_dim)
            mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + mixed.reshape(batch, sequence, -1) @ weights.o_proj
            normed = norm(hidden, weights.post_attention_layernorm)
            gated = jax.nn.silu(normed @ weights.gate_proj) * (normed @ weights.up_proj)
            return hidden + gated @ weights.down_proj, ()

        hidden, _ = jax.lax.scan(layer, hidden, params.layers)
        logits = norm(hidden, params.norm)[:, :-1] @ params.lm_head
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, mu: Any, nu: Any, count: Any, tokens: Any, learning_rate: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens)
        size = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, 1.0 / size), gradients)
        mu = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, mu, gradients)
        nu = jax.tree.map(lambda old, new: 0.95 * old + 0.05 * new**2, nu, gradients)

        def moved(param: Any, first: Any, second: Any, is_decayed: bool) -> Any:
            direction = (first / (1 - 0.9**count)) / (jnp.sqrt(second / (1 - 0.95**count)) + 1e-8)
            return param - learning_rate * (direction + (0.1 * param if is_decayed else 0))

        return jax.tree.map(moved, params, mu, nu, decay_mask(config.build(), params)), mu, nu, loss

    return step
