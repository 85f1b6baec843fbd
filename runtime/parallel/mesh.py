"""The device mesh: named axes that lie on the machine's own wires, each of which may be 1.

replica: whole copies of the parameters, one a slice. data_x, data_y, data_z: parameters, moments and batch are split
over all three (FSDP); on a TPU they are the axes of its torus, because a collective over one physical axis runs on the
ring of that axis, and one over a flattened torus becomes something slower. model and context: tensor and sequence
parallelism.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

DATA_AXES = ("data_x", "data_y", "data_z")
AXES = ("replica", *DATA_AXES, "model", "context")
BATCH_AXES = ("replica", *DATA_AXES)

Torus = tuple[int, int, int]


class MeshShape(NamedTuple):
    """Devices along each axis; `data` is the product of the three data axes."""

    replica: int = 1
    data: int = 1
    model: int = 1
    context: int = 1


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None, *, torus: Torus | None = None) -> Mesh:
    """A mesh over `devices` (all of this run by default), which must be as many as `shape` asks for.

    Args:
        torus: Sizes of the three data axes. By default those of the machine where its devices have coordinates
            (TPU), and otherwise one axis.
    """
    devices = jax.devices() if devices is None else list(devices)
    for axis, size in zip(MeshShape._fields, shape, strict=True):
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
    placed = np.array(devices)
    if torus is None:
        placed, torus = _on_the_torus(devices, shape)
    if math.prod(torus) != shape.data:
        raise ValueError(f"torus {torus} holds {math.prod(torus)} devices and MeshShape.data is {shape.data}.")
    placed = placed.reshape(shape.replica, *torus, shape.model, shape.context)
    return Mesh(placed, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def data_size(mesh: Mesh) -> int:
    """Devices that share one copy of the parameters."""
    return math.prod(mesh.shape[axis] for axis in DATA_AXES)


def num_batch_parts(mesh: Mesh) -> int:
    """Devices that the batch is split over."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def platform(mesh: Mesh) -> str:
    """ "cpu", "gpu" or "tpu": what the mesh's devices are, present or only compiled for."""
    name = str(mesh.devices.flat[0].platform)
    return "gpu" if name in ("cuda", "rocm") else name


def _on_the_torus(devices: Sequence[Any], shape: MeshShape) -> tuple[np.ndarray, Torus]:
    """Devices in the order of (slice, x, y, z), and the sizes of the torus that a replica fills."""
    if devices[0].platform != "tpu" or len(devices) == 1:
        return np.array(devices), (shape.data, 1, 1)
    places = {device: (getattr(device, "slice_index", None) or 0, *device.coords) for device in devices}
    num_slices, *sizes = (len(set(positions)) for positions in zip(*places.values(), strict=True))
    if len(set(places.values())) != len(devices):
        raise ValueError(
            f"{len(devices)} devices share {len(set(places.values()))} chips: two cores a chip count as two devices. "
            "Run v4 with megacore, where a chip is one device."
        )
    if num_slices != shape.replica or math.prod(sizes) != shape.data:
        raise ValueError(
            f"MeshShape has replica={shape.replica}, data={shape.data}, and the devices are {num_slices} slices of "
            f"{'x'.join(map(str, sizes))} chips; a replica is one slice: "
            f"MeshShape(replica={num_slices}, data={math.prod(sizes)})."
        )
    return np.array(sorted(devices, key=places.__getitem__)), (sizes[0], sizes[1], sizes[2])
