"""Run by `matrix` in a process of its own: compiles one kernel with its gradients for one TPU chip, at 8B shapes.

`python -m runtime.cost.compile_kernel GENERATION KERNEL` prints the peak memory in bytes.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.cost.chips import GENERATIONS
from runtime.kernels.attention import attend
from runtime.kernels.cross_entropy import linear_cross_entropy

SEQUENCES, SEQUENCE_LENGTH, HIDDEN_SIZE, VOCAB_SIZE = 2, 4096, 4096, 128_256
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128


def peak_memory_in_bytes(generation: str, kernel: str) -> int:
    """Of the kernel's value and gradients on one chip."""
    chip = GENERATIONS[generation]
    options: dict[str, Any] = {} if chip.chip_config_name is None else {"chip_config_name": chip.chip_config_name}
    topology = f"{generation}:{'2x2x1' if chip.dimensions == 3 else '2x2'}"
    devices = topologies.get_topology_desc(topology, platform="tpu", **options).devices
    place = NamedSharding(Mesh(np.array(devices[:1]), ("one",)), PartitionSpec())

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def attention(query: Any, key: Any, value: Any, segment_ids: Any) -> Any:
        return attend(query, key, value, segment_ids, kernel=kernel).astype(jnp.float32).sum()

    def loss(hidden: Any, head: Any, labels: Any, weights: Any) -> Any:
        z_loss = jnp.float32(1e-4)
        return linear_cross_entropy(hidden, head, labels, weights=weights, z_loss=z_loss, kernel=kernel).objective

    if kernel == "splash":
        shapes = [(SEQUENCES, SEQUENCE_LENGTH, heads, HEAD_DIM) for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)]
        arguments = [*(array(shape, jnp.bfloat16) for shape in shapes), array((SEQUENCES, SEQUENCE_LENGTH), jnp.int32)]
        program = jax.value_and_grad(attention, argnums=(0, 1, 2))
    else:
        tokens = SEQUENCES * SEQUENCE_LENGTH
        arguments = [array((tokens, HIDDEN_SIZE), jnp.bfloat16), array((HIDDEN_SIZE, VOCAB_SIZE), jnp.bfloat16)]
        arguments += [array((tokens,), jnp.int32), array((tokens,), jnp.float32)]
        program = jax.value_and_grad(loss, argnums=(0, 1))
    # Under shard_map, as in a train step: block sizes are chosen by the generation of its mesh.
    on_one_chip = jax.shard_map(
        program, mesh=place.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    compiled: Any = jax.jit(on_one_chip).lower(*arguments).compile()
    return int(compiled.memory_analysis().peak_memory_in_bytes)


if __name__ == "__main__":
    print(peak_memory_in_bytes(sys.argv[1], sys.argv[2]))
