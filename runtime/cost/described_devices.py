"""Devices that are not here, as their compilers describe them: enough to build a mesh and to compile for it."""

import contextlib
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from runtime.cost.chips import GENERATIONS, GPUS, Slice
from runtime.cost.gpu_target import target_config

RING = "ring"
"""Axis of `mesh_of_16_chips`."""


def described_devices(one: Slice, *, num_slices: int = 1) -> list[jax.Device]:
    """All chips of `num_slices` slices like `one`.

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
    """While a program is lowered for `mesh`: some kernels (tokamax's) ask JAX's default device what they run on."""
    return jax.default_device(mesh.devices.flat[0])


def mesh_of_one_chip(name: str) -> Mesh:
    """By the chip's name in `chips`, such as "v4" or "H200".

    Raises:
        KeyError: no chip has that name.
        RuntimeError: the compiler for it is not installed.
    """
    chip = GPUS[name] if name in GPUS else GENERATIONS[name]
    # A TPU comes as a host of four: the compiler describes no single one of every generation.
    sizes = (1,) if chip.platform == "gpu" else (2, 2, 1)[: chip.dimensions]
    return Mesh(np.array(described_devices(Slice(chip, sizes))[:1]), ("one",))


def mesh_of_16_chips(name: str) -> Mesh:
    """Of a TPU by its generation, along one axis, as a kernel that sends needs them.

    Raises:
        KeyError: no generation has that name.
        RuntimeError: the compiler for it is not installed.
    """
    chip = GENERATIONS[name]
    return Mesh(np.array(described_devices(Slice(chip, (4, 4) if chip.dimensions == 2 else (2, 2, 4)))), (RING,))
