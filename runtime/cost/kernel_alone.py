"""One kernel with its gradients as a program of its own, built as a train step would build it.

For compilers of chips that are not here, and to be timed on those that are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.kernels.cross_entropy import CrossEntropy
from runtime.kernels.shapes import Head, Hidden, KeyValue, Labels, PerToken, Query, Scalar, SegmentIds
from runtime.parallel.compiler_options import compiler_options

Z_LOSS = 1e-4


class AttentionShape(NamedTuple):
    """Of packed sequences, in bfloat16."""

    num_sequences: int
    sequence_length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


class LossShape(NamedTuple):
    """Of hidden states and an output matrix in bfloat16."""

    num_tokens: int
    hidden_size: int
    vocab_size: int


class ScatterShape(NamedTuple):
    """Of the two sides of a weight's gradient in bfloat16, which is scattered along its first dimension."""

    num_tokens: int
    scattered: int
    columns: int


def attention_with_gradients(attention: Callable[..., Query]) -> Callable[..., Any]:
    """Of query, key, value and segment ids: the sum of what attention gives, and its gradients by the first three.

    `attention` takes the four, as `attend` with a kernel does.
    """

    def total(query: Query, key: KeyValue, value: KeyValue, segment_ids: SegmentIds) -> Scalar:
        return attention(query, key, value, segment_ids).astype(jnp.float32).sum()

    return jax.value_and_grad(total, argnums=(0, 1, 2))


def loss_with_gradients(loss: Callable[..., CrossEntropy]) -> Callable[..., Any]:
    """Of hidden states, output matrix, labels and weights: the objective, and its gradients by the first two.

    `loss` takes them and `z_loss`, as `linear_cross_entropy` with a kernel does.
    """

    def objective(hidden: Hidden, head: Head, labels: Labels, weights: PerToken) -> Scalar:
        return loss(hidden, head, labels, weights=weights, z_loss=jnp.float32(Z_LOSS)).objective

    return jax.value_and_grad(objective, argnums=(0, 1))


def jit_like_a_step(program: Callable[..., Any], mesh: Mesh) -> Any:
    """To be compiled with the options of a train step, and under a mesh, by whose chips kernels choose their blocks."""
    whole = PartitionSpec()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    return jax.jit(mapped, compiler_options=compiler_options(mesh))


def arguments_of(shape: AttentionShape | LossShape | ScatterShape, mesh: Mesh) -> list[jax.ShapeDtypeStruct]:
    """What the program of that shape takes, without values, on the devices of `mesh`."""
    place = NamedSharding(mesh, PartitionSpec())

    def array(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=place)

    match shape:
        case AttentionShape(num_sequences, sequence_length, num_heads, num_kv_heads, head_dim):
            counts = num_heads, num_kv_heads, num_kv_heads
            parts = [array(jnp.bfloat16, num_sequences, sequence_length, count, head_dim) for count in counts]
            return [*parts, array(jnp.int32, num_sequences, sequence_length)]
        case LossShape(num_tokens, hidden_size, vocab_size):
            sides = [array(jnp.bfloat16, num_tokens, hidden_size), array(jnp.bfloat16, hidden_size, vocab_size)]
            return [*sides, array(jnp.int32, num_tokens), array(jnp.float32, num_tokens)]
        case ScatterShape(num_tokens, scattered, columns):
            return [array(jnp.bfloat16, num_tokens, size) for size in (scattered, columns)]
