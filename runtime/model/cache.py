"""KeyValueCache: keys and values of the tokens that sequences have so far, in the compute dtype.

A slot holds one sequence. Grouped key-value heads stay grouped. What lies behind a slot's tokens is left from others
and never read, so that filling a slot clears nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int32

from runtime.model.config import ModelConfig

Layers = tuple[Array, ...] | Array
"""An array for each layer, for layers that are written out; or one with a leading axis, for a loop over them."""
NewToken = Float[Array, "slots kv_heads head_dim"]
Index = Int32[Array, ""]


class KeyValueCache(NamedTuple):
    """Keys and values as [slots, kv_heads, capacity, head_dim], by layer.

    Keys of layers that are written out have the last two axes swapped, which a CPU reads faster (`attention_paged`).
    """

    keys: Layers
    values: Layers


class PackedRows(NamedTuple):
    """Sequences beside each other in rows, some of which continue another one of the row as their prefix."""

    tokens: Int32[Any, "rows length"]
    positions: Int32[Any, "rows length"]
    """Position of each token in its sequence, that of a prefix included."""
    begin: Int32[Any, "rows length"]
    """Place in the row where the token's sequence begins."""
    prefix_begin: Int32[Any, "rows length"]
    prefix_end: Int32[Any, "rows length"]
    """Places of the prefix; equal for a sequence without one."""


def empty_cache(
    config: ModelConfig, *, slots: int, capacity: int, dtype: DTypeLike, written_out: bool
) -> KeyValueCache:
    """Return a cache of zeros; `written_out` has one array a layer."""
    kv_heads, head_dim = config.num_key_value_heads, config.head_dim

    def layers(*shape: int) -> Layers:
        if written_out:
            return tuple(jnp.zeros(shape, dtype) for _ in range(config.num_hidden_layers))
        return jnp.zeros((config.num_hidden_layers, *shape), dtype)

    sizes = (head_dim, capacity) if written_out else (capacity, head_dim)
    return KeyValueCache(layers(slots, kv_heads, *sizes), layers(slots, kv_heads, capacity, head_dim))


def appended(
    cache: KeyValueCache, new: tuple[Layers, Layers], lengths: Int32[Array, "slots"], layer: Index | None = None
) -> KeyValueCache:
    """Return the cache with the key and value of one more token after the first `lengths` of each slot.

    With `layer`, the token of this layer alone is written to the stacked layers.
    """
    if not isinstance(cache.keys, tuple):
        keys, values = (_with_token(*pair, lengths, layer) for pair in zip(cache, new, strict=True))
        return KeyValueCache(keys, values)
    slots = jnp.arange(lengths.size, dtype=jnp.int32)

    def with_key(keys: Array, key: NewToken) -> Array:
        return keys.at[slots, :, :, lengths].set(key)

    def with_value(values: Array, value: NewToken) -> Array:
        return values.at[slots, :, lengths].set(value)

    return KeyValueCache(_by_layer(with_key, cache.keys, new[0]), _by_layer(with_value, cache.values, new[1]))


def _with_token(stack: Any, new: Any, lengths: Int32[Array, "slots"], layer: Index | None) -> Array:
    """Write by pairs of slot and head; for writes by slot a TPU's compiler copies the whole cache to another layout."""
    layers, slots, kv_heads, *_ = stack.shape
    pairs = jnp.arange(slots * kv_heads, dtype=jnp.int32)
    into = jnp.arange(layers, dtype=jnp.int32)[:, None] if layer is None else layer
    flat = stack.reshape(layers, pairs.size, *stack.shape[3:])
    tokens = new.reshape(*new.shape[:-3], pairs.size, new.shape[-1])
    return flat.at[into, pairs, jnp.repeat(lengths, kv_heads)].set(tokens).reshape(stack.shape)


def filled(
    cache: KeyValueCache, row: tuple[Layers, Layers], start: Index, slot: Index, is_used: Bool[Array, ""]
) -> KeyValueCache:
    """Return the cache with the keys and values from `start` of a prefilled row at the beginning of `slot`.

    Args:
        cache: what the sequence goes to.
        row: of each layer keys and values as [1, length, kv_heads, head_dim].
        start: place of the sequence in the row.
        slot: its slot.
        is_used: whether anything is written.
    """

    def place(into: Array, part: Array, axis: int) -> Array:
        whole = jnp.moveaxis(jnp.roll(part[0], -start, axis=0), 0, axis)[None]
        whole = lax.slice_in_dim(whole, 0, min(part.shape[1], into.shape[axis + 1]), axis=axis + 1)
        at = (slot, *(jnp.int32(0),) * (into.ndim - 1))
        kept = lax.dynamic_slice(into, at, whole.shape)
        return lax.dynamic_update_slice(into, jnp.where(is_used, whole, kept), at)

    keys_axis = 2 if isinstance(cache.keys, tuple) else 1
    return KeyValueCache(
        _by_layer(lambda keys, part: place(keys, part, keys_axis), cache.keys, row[0]),
        _by_layer(lambda values, part: place(values, part, 1), cache.values, row[1]),
    )


def narrowed(cache: KeyValueCache, capacity: int) -> KeyValueCache:
    """Return the first `capacity` tokens of each slot."""

    def first(part: Array, axis: int) -> Array:
        return lax.slice_in_dim(part, 0, capacity, axis=axis)

    keys_axis = 3 if isinstance(cache.keys, tuple) else 2
    return KeyValueCache(
        _by_layer(lambda keys: first(keys, keys_axis), cache.keys),
        _by_layer(lambda values: first(values, 2), cache.values),
    )


def _by_layer(change: Callable[..., Array], *parts: Layers) -> Layers:
    if isinstance(parts[0], tuple):
        return tuple(change(*layer) for layer in zip(*parts, strict=True))
    mapped: Array = jax.vmap(change)(*parts)
    return mapped
