"""Device memory of an evaluation: the tokens that a cache may hold beside the parameters and a program's own arrays."""

import math

import numpy as np
from jax.typing import DTypeLike

from runtime.evaluation.generation import CACHED_TOKENS
from runtime.model.config import ModelConfig

USABLE_SHARE = 0.97
"""Share of a device's memory that is planned with; the rest is left to fragments."""
GATHERED_EMBEDDINGS = 1.5
"""Largest memory for a gathered embedding, in its whole size: a torus of two axes gathers it in two steps."""


def cached_tokens(
    config: ModelConfig,
    *,
    parameter_bytes: int,
    devices_of_a_copy: int,
    memory_in_bytes: int | None,
    compute_dtype: DTypeLike,
) -> int:
    """Return the most tokens that a device's cache may hold.

    Beside the cache lie a device's share of the parameters, the largest of its gathered parts, and a row of prompts
    with its own keys and values. A row is at most as long as half of the cache, or as the slot of a text that fills more than half.

    Args:
        config: the model's shape.
        parameter_bytes: size of one copy of the parameters.
        devices_of_a_copy: devices that share a copy.
        memory_in_bytes: memory of a device; None for a CPU, which has enough.
        compute_dtype: dtype of activations and cache.
    """
    if memory_in_bytes is None:
        return CACHED_TOKENS
    item_bytes = np.dtype(compute_dtype).itemsize
    gathered = 0.0
    if devices_of_a_copy > 1:
        layer = sum(math.prod(shape) for shape in config.layer_matrices)
        gathered = max(layer, GATHERED_EMBEDDINGS * config.vocab_size * config.hidden_size) * item_bytes
    of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * item_bytes
    activations = (6 * config.hidden_size + 3 * max(config.layer_widths)) * item_bytes
    free = USABLE_SHARE * memory_in_bytes - parameter_bytes / devices_of_a_copy - gathered
    return max(1, min(CACHED_TOKENS, int(free / (of_token + (of_token + activations) / 2))))
