"""A kernel with its gradients as a program of its own, built as a train step would build it.

For compilers of chips that are not here, and to be timed on those that are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.cost.chips import GENERATIONS, GPUS, Slice
from runtime.cost.described_devices import described_devices
from runtime.kernels.attention_paged import attend_to_pages
from runtime.kernels.cross_entropy import CrossEntropy
from runtime.kernels.shapes import Head, Hidden, KeyValue, Labels, PerToken, Query, Scalar, SegmentIds
from runtime.model.cache import KeyValueCache, appended
from runtime.parallel.compiler_options import compiler_options

Z_LOSS = 1e-4
RING = "ring"
"""Axis of `mesh_of_16_chips`."""


class AttentionShape(NamedTuple):
    """Shape of packed sequences, in bfloat16."""

    num_sequences: int
    sequence_length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class LossShape(NamedTuple):
    """Shape of hidden states and an output matrix in bfloat16."""

    num_tokens: int
    hidden_size: int
    vocab_size: int


class ScatterShape(NamedTuple):
    """Shape of both sides of a weight's gradient in bfloat16, scattered along its first dimension."""

    num_tokens: int
    scattered: int
    columns: int


class CacheShape(NamedTuple):
    """Shape of a cache of all layers in bfloat16, and of one new token of each slot."""

    num_layers: int
    slots: int
    num_heads: int
    num_kv_heads: int
    capacity: int
    head_dim: int


def decoding(kernel: Any) -> Callable[..., Any]:
    """Return a function of cache, query, key, value and lengths: the cache with new tokens, and the last attention.

    Each layer first writes its tokens, as in `Llama.decode`. The memory shows whether that copies the cache.
    """

    def run(keys: Any, values: Any, query: Any, key: Any, value: Any, lengths: Any) -> Any:
        def layer(carried: tuple[KeyValueCache, Any], number: Any) -> tuple[tuple[KeyValueCache, Any], None]:
            cache = appended(carried[0], (key, value), lengths, number)
            return (cache, attend_to_pages(carried[1], cache, lengths + 1, number, kernel=kernel)), None

        layers = jnp.arange(keys.shape[0], dtype=jnp.int32)
        return jax.lax.scan(layer, (KeyValueCache(keys, values), query), layers)[0]

    return run


def attention_with_gradients(attention: Callable[..., Query]) -> Callable[..., Any]:
    """Return a function of query, key, value and segment ids: attention's sum, and its gradients by the first three.

    `attention` takes the four, as `attend` with a kernel does.
    """

    def total(query: Query, key: KeyValue, value: KeyValue, segment_ids: SegmentIds) -> Scalar:
        return attention(query, key, value, segment_ids).astype(jnp.float32).sum()

    return jax.value_and_grad(total, argnums=(0, 1, 2))


def loss_with_gradients(loss: Callable[..., CrossEntropy]) -> Callable[..., Any]:
    """Return a function of hidden states, head, labels and weights: the objective, and its gradients by the first two.

    `loss` takes them and `z_loss`, as `linear_cross_entropy` with a kernel does.
    """

    def objective(hidden: Hidden, head: Head, labels: Labels, weights: PerToken) -> Scalar:
        return loss(hidden, head, labels, weights=weights, z_loss=jnp.float32(Z_LOSS)).objective

    return jax.value_and_grad(objective, argnums=(0, 1))


def jit_like_a_step(program: Callable[..., Any], mesh: Mesh, *, donated: tuple[int, ...] = ()) -> Any:
    """Return the program with a train step's compiler options, under a mesh, whose chips decide the kernels' blocks."""
    whole = PartitionSpec()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    return jax.jit(mapped, compiler_options=compiler_options(mesh), donate_argnums=donated)


def arguments_of(
    shape: AttentionShape | CacheShape | LossShape | ScatterShape, mesh: Mesh
) -> list[jax.ShapeDtypeStruct]:
    """Return the arguments of the program of that shape, without values, on the devices of `mesh`."""
    place = NamedSharding(mesh, PartitionSpec())

    def array(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=place)

    match shape:
        case AttentionShape(num_sequences, sequence_length, num_heads, num_kv_heads, head_dim):
            counts = num_heads, num_kv_heads, num_kv_heads
            parts = [array(jnp.bfloat16, num_sequences, sequence_length, count, head_dim) for count in counts]
            return [*parts, array(jnp.int32, num_sequences, sequence_length)]
        case CacheShape(num_layers, slots, num_heads, num_kv_heads, capacity, head_dim):
            stacks = [array(jnp.bfloat16, num_layers, slots, num_kv_heads, capacity, head_dim)] * 2
            tokens = [array(jnp.bfloat16, slots, heads, head_dim) for heads in (num_heads, num_kv_heads, num_kv_heads)]
            return [*stacks, *tokens, array(jnp.int32, slots)]
        case LossShape(num_tokens, hidden_size, vocab_size):
            sides = [array(jnp.bfloat16, num_tokens, hidden_size), array(jnp.bfloat16, hidden_size, vocab_size)]
            return [*sides, array(jnp.int32, num_tokens), array(jnp.float32, num_tokens)]
        case ScatterShape(num_tokens, scattered, columns):
            return [array(jnp.bfloat16, num_tokens, size) for size in (scattered, columns)]


def mesh_of_one_chip(name: str) -> Mesh:
    """Return a mesh of the chip with that name in `chips`, such as "v4" or "H200".

    Raises:
        KeyError: no chip has that name.
        RuntimeError: the compiler for it is not installed.
    """
    chip = GPUS[name] if name in GPUS else GENERATIONS[name]
    # A TPU comes as a host of four: the compiler describes no single one of every generation.
    sizes = (1,) if chip.platform == "gpu" else (2, 2, 1)[: chip.dimensions]
    return Mesh(np.array(described_devices(Slice(chip, sizes))[:1]), ("one",))


def mesh_of_16_chips(name: str) -> Mesh:
    """Return 16 chips of a TPU generation along one axis, as a kernel that sends needs them.

    Raises:
        KeyError: no generation has that name.
        RuntimeError: the compiler for it is not installed.
    """
    chip = GENERATIONS[name]
    return Mesh(np.array(described_devices(Slice(chip, (4, 4) if chip.dimensions == 2 else (2, 2, 4)))), (RING,))
