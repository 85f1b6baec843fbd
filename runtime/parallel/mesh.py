"""The device mesh: four named axes, each of which may be 1.

replica: whole copies of the parameters, one a slice. data: parameters, moments and batch are split over it (FSDP).
model and context: tensor and sequence parallelism.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

AXES = ("replica", "data", "model", "context")
BATCH_AXES = ("replica", "data")


class MeshShape(NamedTuple):
    """Devices along each axis."""

    replica: int = 1
    data: int = 1
    model: int = 1
    context: int = 1


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over `devices` (all of this run by default), which must be as many as `shape` asks for."""
    devices = jax.devices() if devices is None else list(devices)
    for axis, size in zip(AXES, shape, strict=True):
        if size < 1:
            raise ValueError(f"MeshShape.{axis} is {size}; every axis has at least one device.")
    for axis in ("model", "context"):
        if getattr(shape, axis) > 1:
            raise NotImplementedError(
                f"MeshShape.{axis} is {getattr(shape, axis)}; tensor and context parallelism are not built yet. "
                "Give the devices to `data` or `replica`."
            )
    if math.prod(shape) != len(devices):
        raise ValueError(
            f"MeshShape {tuple(shape)} needs {math.prod(shape)} devices and there are {len(devices)}; "
            f"pass as many, or MeshShape(data={len(devices)})."
        )
    return Mesh(np.array(devices).reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def platform(mesh: Mesh) -> str:
    """ "cpu", "gpu" or "tpu": what the mesh's devices are, present or only compiled for."""
    name = str(mesh.devices.flat[0].platform)
    return "gpu" if name in ("cuda", "rocm") else name
