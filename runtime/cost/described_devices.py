"""Devices that are not here, as their compilers describe them: enough to build a mesh and compile for it."""

import contextlib
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from runtime.cost.chips import Slice
from runtime.cost.gpu_target import target_config


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
