"""Device memory of an evaluation: the tokens that a cache may hold beside the parameters and a program's own arrays.

Importable without JAX: plans ask for it.
"""

import math

from runtime.model.config import ModelConfig

CACHED_TOKENS = 32_768
"""Maximum number of tokens in a device's cache, unless one text needs more."""
GIB = 2**30
LEAST_CAPACITY, LEAST_UNEVEN = 128, 1_024
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
    compute_dtype: str,
    longest_text: int = 0,
) -> int:
    """Return the most tokens that a device's cache may hold.

    Beside the cache lie a device's share of the parameters, the largest of its gathered parts, and a row of prompts
    with its own keys and values. A row is at most as long as half of the cache, or as the slot of a text that fills
    more than half.

    Args:
        config: the model's shape.
        parameter_bytes: size of one copy of the parameters.
        devices_of_a_copy: devices that share a copy.
        memory_in_bytes: memory of a device; None for a CPU, which has enough.
        compute_dtype: dtype of activations and cache.
        longest_text: new tokens of the longest text; 0 if no text is written.

    Raises:
        ValueError: a device cannot hold the longest text beside its share of the parameters.
    """
    if memory_in_bytes is None:
        return CACHED_TOKENS
    item_bytes = 2 if compute_dtype == "bfloat16" else 4
    gathered = 0.0
    if devices_of_a_copy > 1:
        layer = sum(math.prod(shape) for shape in config.layer_matrices)
        gathered = max(layer, GATHERED_EMBEDDINGS * config.vocab_size * config.hidden_size) * item_bytes
    of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * item_bytes
    activations = (6 * config.hidden_size + 3 * max(config.layer_widths)) * item_bytes
    free = USABLE_SHARE * memory_in_bytes - parameter_bytes / devices_of_a_copy - gathered
    # One text is a slot, and first a row as long.
    needed = cache_capacity(longest_text) * (2 * of_token + activations)
    if longest_text and free < needed:
        raise ValueError(
            f"of {memory_in_bytes / GIB:.1f} GiB of a device, {max(free, 0) / GIB:.1f} GiB are free beside the "
            f"parameters, and a text of {longest_text:,} new tokens takes {needed / GIB:.1f} GiB; use more devices, an "
            "export of dtype bfloat16, or tasks that write shorter texts."
        )
    return max(1, min(CACHED_TOKENS, int(free / (of_token + (of_token + activations) / 2))))


def cache_capacity(need: int) -> int:
    """Return the capacity of a slot for that many tokens: a power of two, or three quarters of a large one."""
    power = max(LEAST_CAPACITY, 1 << (need - 1).bit_length())
    return power * 3 // 4 if power > LEAST_UNEVEN and need <= power * 3 // 4 else power
