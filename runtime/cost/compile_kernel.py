"""Run by `matrix` in a process of its own: compiles one kernel with its gradients for one chip, at 8B shapes.

`python -m runtime.cost.compile_kernel CHIP KERNEL` prints one line of JSON: the peak memory, and of a GPU's attention
kernel what each thread needs.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.cost.chips import GENERATIONS, GPUS
from runtime.cost.gpu_target import target_config
from runtime.cost.registers import registers_of
from runtime.kernels.attention import attend
from runtime.kernels.cross_entropy import linear_cross_entropy
from runtime.parallel.compiler_options import compiler_options

SEQUENCES, SEQUENCE_LENGTH, HIDDEN_SIZE, VOCAB_SIZE = 2, 4096, 4096, 128_256
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
ATTENTION = ("splash", "pallas_gpu")
ASSEMBLED = ("mha_forward", "mha_backward")
"""Names of the kernels that `pallas_gpu` is made of."""


def compiled_kernel(chip: str, kernel: str, *, head_dim: int = HEAD_DIM) -> dict[str, Any]:
    """Of the kernel's value and gradients on one chip: `peak_memory_in_bytes`, and `registers` by kernel of a GPU."""
    mesh = Mesh(np.array(_devices(chip)[:1]), ("one",))
    place = NamedSharding(mesh, PartitionSpec())

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def attention(query: Any, key: Any, value: Any, segment_ids: Any) -> Any:
        return attend(query, key, value, segment_ids, kernel=kernel).astype(jnp.float32).sum()

    def loss(hidden: Any, head: Any, labels: Any, weights: Any) -> Any:
        z_loss = jnp.float32(1e-4)
        return linear_cross_entropy(hidden, head, labels, weights=weights, z_loss=z_loss, kernel=kernel).objective

    if kernel in ATTENTION:
        shapes = [(SEQUENCES, SEQUENCE_LENGTH, heads, head_dim) for heads in (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)]
        arguments = [*(array(shape, jnp.bfloat16) for shape in shapes), array((SEQUENCES, SEQUENCE_LENGTH), jnp.int32)]
        program = jax.value_and_grad(attention, argnums=(0, 1, 2))
    else:
        tokens = SEQUENCES * SEQUENCE_LENGTH
        arguments = [array((tokens, HIDDEN_SIZE), jnp.bfloat16), array((HIDDEN_SIZE, VOCAB_SIZE), jnp.bfloat16)]
        arguments += [array((tokens,), jnp.int32), array((tokens,), jnp.float32)]
        program = jax.value_and_grad(loss, argnums=(0, 1))
    # Under shard_map, as in a train step: block sizes are chosen by the generation of its mesh.
    on_one_chip = jax.shard_map(
        program, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    lowered = jax.jit(on_one_chip, compiler_options=compiler_options(mesh)).lower(*arguments)
    if kernel != "pallas_gpu":
        return {"peak_memory_in_bytes": _peak(lowered.compile())}
    with tempfile.TemporaryDirectory() as folder:
        peak = _peak(lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_emitter_re": "ptx"}))
        registers = registers_of(Path(folder), ASSEMBLED)
    return {"peak_memory_in_bytes": peak, "registers": {name: row._asdict() for name, row in registers.items()}}


def _devices(name: str) -> Any:
    if name in GPUS:
        return topologies.get_topology_desc(
            platform="cuda", target_config=target_config(name), topology="1x1x1"
        ).devices
    chip = GENERATIONS[name]
    options: dict[str, Any] = {} if chip.chip_config_name is None else {"chip_config_name": chip.chip_config_name}
    topology = f"{name}:{'2x2x1' if chip.dimensions == 3 else '2x2'}"
    return topologies.get_topology_desc(topology, platform="tpu", **options).devices


def _peak(program: Any) -> int:
    return int(program.memory_analysis().peak_memory_in_bytes)


if __name__ == "__main__":
    chip_name, kernel_name, *sizes = sys.argv[1:]
    print(json.dumps(compiled_kernel(chip_name, kernel_name, **({"head_dim": int(sizes[0])} if sizes else {}))))
