"""Device memory of an evaluation: the tokens that fit beside the parameters and a program's own arrays.

Importable without JAX: plans ask for it.
"""

import bisect
import math
from collections.abc import Iterable
from typing import NamedTuple

from runtime.model.config import ModelConfig

CACHED_TOKENS = 32_768
"""Maximum number of tokens in a device's cache, unless one text needs more."""
QUERIES_PER_BATCH = 1_024
"""Scored positions whose logits a device holds at once."""
GIB = 2**30
CAPACITIES = sorted((*(128 << power for power in range(20)), *(1_536 << power for power in range(17))))
"""Capacities of a slot in tokens: powers of two, and three quarters of large ones."""
USABLE_SHARE = 0.97
"""Share of a device's memory that plans use; fragments take the rest."""
GATHERED_EMBEDDINGS = 1.5
"""Largest memory of a gathered embedding, relative to its size: a torus of two axes gathers it in two steps."""
CURE = "use more devices or an export of dtype bfloat16"


class DeviceRoom(NamedTuple):
    """Limits of tokens on a device, beside its share of the parameters; the defaults are those of a CPU."""

    cached_tokens: int = CACHED_TOKENS
    """Tokens in its cache."""
    longest_text: int | None = None
    """Tokens of one text with its prompt, which fill a slot of the cache; None without a limit."""
    row_tokens: int | None = None
    """Tokens in rows that are scored together; None without a limit."""


def device_room(
    config: ModelConfig,
    *,
    parameter_bytes: int,
    devices_of_a_copy: int,
    memory_in_bytes: int | None,
    compute_dtype: str,
    longest_text: int = 0,
    tokens_per_batch: int = 0,
) -> DeviceRoom:
    """Return the tokens that fit on a device.

    Beside a cache lie a device's share of the parameters, the largest of its gathered parts, and a row of prompts with
    its own keys and values. A row is at most as long as half of the cache, or as the slot of a text that fills more
    than half.

    Args:
        config: the model's shape.
        parameter_bytes: size of one copy of the parameters.
        devices_of_a_copy: devices that share a copy.
        memory_in_bytes: memory of a device; None for a CPU, which has enough.
        compute_dtype: dtype of activations and cache.
        longest_text: new tokens of the longest text; 0 if no text is written.
        tokens_per_batch: tokens of the rows that a device scores at once.

    Raises:
        ValueError: the longest text or a batch of rows does not fit.
    """
    if memory_in_bytes is None:
        return DeviceRoom()
    item_bytes = 2 if compute_dtype == "bfloat16" else 4
    layer = embedding = 0.0
    if devices_of_a_copy > 1:
        layer = sum(math.prod(shape) for shape in config.layer_matrices) * item_bytes
        embedding = GATHERED_EMBEDDINGS * config.vocab_size * config.hidden_size * item_bytes
    of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * item_bytes
    activations = (6 * config.hidden_size + 3 * max(config.layer_widths)) * item_bytes
    usable, parameters = USABLE_SHARE * memory_in_bytes, parameter_bytes / devices_of_a_copy
    free = max(0.0, usable - parameters)
    beside_gathered = max(0.0, free - max(layer, embedding))
    head = embedding + QUERIES_PER_BATCH * config.vocab_size * 4
    # The hidden states of all rows stay while the head runs.
    beside_head = max(0.0, free - head) / (config.hidden_size * item_bytes)
    most_text = _largest_capacity(int(beside_gathered / (2 * of_token + activations)))
    most_rows = int(min(max(0.0, free - layer) / activations, beside_head))
    a_layer = (layer, "a gathered layer")
    taken = (parameters, "the parameters"), max(a_layer, (embedding, "the gathered embedding"))
    _check_room("a task's max_gen_toks", longest_text, most_text, usable, taken)
    taken = (parameters, "the parameters"), max(a_layer, (head, "the head with its logits"))
    _check_room("tokens_per_batch", tokens_per_batch, most_rows, usable, taken)
    cached = int(beside_gathered / (of_token + (of_token + activations) / 2))
    return DeviceRoom(max(1, min(CACHED_TOKENS, cached)), most_text, most_rows)


def _check_room(name: str, wanted: int, most: int, usable: float, taken: Iterable[tuple[float, str]]) -> None:
    """Raise ValueError if more tokens are wanted than fit beside what is `taken` of the usable bytes."""
    if wanted <= most:
        return
    if most:
        raise ValueError(
            f"{name} is {wanted:,}, and a device has room for {most:,} tokens beside the parameters; lower it, {CURE}."
        )
    parts = " and ".join(f"{part} ({size / GIB:.1f} GiB)" for size, part in taken if size)
    raise ValueError(
        f"{parts} leave no room for {name} in {USABLE_SHARE:.0%} of a device's memory ({usable / GIB:.1f} GiB); {CURE}."
    )


def cache_capacity(need: int) -> int:
    """Return the least capacity of a slot for that many tokens."""
    return CAPACITIES[bisect.bisect_left(CAPACITIES, need)]


def _largest_capacity(room: int) -> int:
    """Return the largest capacity of a slot in that many tokens, or 0."""
    return max((capacity for capacity in CAPACITIES if capacity <= room), default=0)
