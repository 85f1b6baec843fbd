"""Devices that are not here, as their compilers describe them: enough to build a mesh and compile for it.

Figures of GPUs are those of the SXM boards by NVIDIA's data sheets and CUDA's occupancy tables (compute capability 8.0
and 9.0). The compiler uses them to make the GPU's machine code, and to choose tiles that fit its shared memory.
"""

import contextlib
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from runtime.cost.chips import Slice

CUDA_RUNTIME, CUDNN = "major: 12 minor: 9 patch: 0", "major: 9 minor: 10 patch: 0"
"""Versions that the program is compiled for; XLA chooses no kernel that needs newer ones."""


class _Board(NamedTuple):
    name: str
    compute_capability: int
    num_processors: int
    shared_memory_in_bytes: int
    """Shared memory of one processor; a block gets 1 KiB less."""
    l2_cache_in_bytes: int
    clock_ghz: float
    memory_in_bytes: int
    memory_bytes_per_second: int


BOARDS = {
    "A100-80G": _Board("NVIDIA A100-SXM4-80GB", 8, 108, 167_936, 41_943_040, 1.41, 84_930_000_000, 2_039_000_000_000),
    "H100": _Board("NVIDIA H100 80GB HBM3", 9, 132, 233_472, 52_428_800, 1.98, 84_930_000_000, 3_352_000_000_000),
    "H200": _Board("NVIDIA H200", 9, 132, 233_472, 52_428_800, 1.98, 150_100_000_000, 4_800_000_000_000),
}


def described_devices(one: Slice, *, num_slices: int = 1) -> list[jax.Device]:
    """Return all chips of `num_slices` slices like `one`.

    Raises:
        RuntimeError: the compiler for them is not installed, or knows no such topology.
    """
    chip = one.generation
    if chip.platform == "gpu":
        config = target_config(chip.name)
        return list(topologies.get_topology_desc(platform="cuda", target_config=config, topology=one.topology).devices)
    options: dict[str, Any] = {} if chip.chip_config_name is None else {"chip_config_name": chip.chip_config_name}
    if num_slices > 1:
        options["num_slices"] = num_slices
    return list(topologies.get_topology_desc(one.topology, platform="tpu", **options).devices)


def as_default(mesh: Mesh) -> contextlib.AbstractContextManager[Any]:
    """Return a context to lower a program for `mesh` in: tokamax asks JAX's default device what it runs on."""
    return jax.default_device(mesh.devices.flat[0])


def target_config(kind: str) -> str:
    """Return a GPU by Ray's name for it, such as "H200", as text of XLA's `GpuTargetConfigProto`."""
    board = BOARDS[kind]
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {board.compute_capability} }}
  core_count: {board.num_processors}
  clock_rate_ghz: {board.clock_ghz}
  fpus_per_core: {128 if board.compute_capability >= 9 else 64}
  memory_bandwidth: {board.memory_bytes_per_second}
  device_memory_size: {board.memory_in_bytes}
  l2_cache_size: {board.l2_cache_in_bytes}
  shared_memory_per_core: {board.shared_memory_in_bytes}
  shared_memory_per_block_optin: {board.shared_memory_in_bytes - 1024}
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
runtime_version {{ {CUDA_RUNTIME} }}
dnn_version_info {{ {CUDNN} }}
device_description_str: "{board.name}"
"""
