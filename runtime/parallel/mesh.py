"""The device mesh: named axes that lie on the machine's own wires, each of which may be 1.

replica: whole copies of the parameters, one a slice. data_x, data_y, data_z: parameters, moments and batch are split
over all three (FSDP); on a TPU they are the axes of its torus, because a collective over one physical axis runs on the
ring of that axis, and one over a flattened torus becomes something slower. model: heads and columns of the products are
split over it (tensor parallelism). context: each row's tokens are. Both also hold parts of the parameters, and lie on
neighbouring devices.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from runtime.parallel.torus import cut_axis

DATA_AXES = ("data_x", "data_y", "data_z")
AXES = ("replica", *DATA_AXES, "model", "context")
BATCH_AXES = ("replica", *DATA_AXES)
TOKEN_AXES = PartitionSpec(BATCH_AXES, "context")
"""How [batch, sequence] lies on a mesh."""
COPY_AXES = (*DATA_AXES, "context", "model")
"""Over these, one copy of the parameters is split."""

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


def whole_mesh(*, num_slices: int = 1, model: int = 1, context: int = 1) -> Mesh:
    """A mesh over all devices of this run: a replica a slice, and to data what model and context leave of it."""
    num_devices, shared = jax.device_count() // num_slices, model * context
    if num_devices % shared:
        raise ValueError(
            f"model x context is {shared}, which does not divide the {num_devices} devices of a slice; choose sizes "
            "that do."
        )
    return make_mesh(MeshShape(num_slices, num_devices // shared, model, context))


def mesh_of_cores(num_cores: int, *, model: int = 1, context: int = 1) -> Mesh:
    """A mesh over the first `num_cores` CPU devices of each process; `hosts.open_cores` makes a core a device.

    Cores of one process have one memory, so that each computes with whole parameters (the replica axis): gathering them
    from one another would cost more than it saves. Over processes they are split (data).
    """
    by_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    fewest = min(by_process.values(), key=len)
    if len(fewest) < num_cores:
        raise ValueError(
            f"{num_cores} cores are asked for, and this process computes on {len(fewest)} x {fewest[0].device_kind}; "
            "ask for what is there, or keep JAX to the cores (JAX_PLATFORMS=cpu)."
        )
    cores = np.array([devices[:num_cores] for _, devices in sorted(by_process.items())])
    if cores.size % (model * context):
        raise ValueError(
            f"model x context is {model * context}, which does not divide the {cores.size} cores; choose sizes that do."
        )
    placed = _in_copies(cores, model * context)
    shape = MeshShape(len(placed), placed[0].size // (model * context), model, context)
    return make_mesh(shape, list(placed.flat))


def data_size(mesh: Mesh) -> int:
    """Devices of the three data axes."""
    return math.prod(mesh.shape[axis] for axis in DATA_AXES)


def copy_size(mesh: Mesh) -> int:
    """Devices that share one copy of the parameters."""
    return math.prod(mesh.shape[axis] for axis in COPY_AXES)


def num_batch_parts(mesh: Mesh) -> int:
    """Devices that the batch is split over."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def platform(mesh: Mesh) -> str:
    """ "cpu", "gpu" or "tpu": what the mesh's devices are, present or only compiled for."""
    name = str(mesh.devices.flat[0].platform)
    return "gpu" if name in ("cuda", "rocm") else name


def device_kind(mesh: Mesh) -> str:
    """What JAX calls the mesh's devices, such as "TPU v4" or "NVIDIA H200"."""
    return str(mesh.devices.flat[0].device_kind)


def _in_copies(cores: np.ndarray, num_parts: int) -> np.ndarray:
    """[process, core] as [copy, process, part]: a process has as many copies as it has `num_parts` cores for."""
    num_processes, num_cores = cores.shape
    num_copies = num_cores // num_parts if num_cores % num_parts == 0 else 1
    return cores.reshape(num_processes, num_copies, -1).swapaxes(0, 1)


def _on_the_torus(devices: Sequence[Any], shape: MeshShape) -> tuple[np.ndarray, Torus]:
    """Devices in the order of (slice, x, y, z, model, context), and the sizes of the data axes.

    The model and context axes are cut from the last axis of the torus that they divide.
    """
    if devices[0].platform != "tpu" or len(devices) == 1:
        return np.array(devices), (shape.data, 1, 1)
    places = {device: (getattr(device, "slice_index", None) or 0, *device.coords) for device in devices}
    num_slices, *sizes = (len(set(positions)) for positions in zip(*places.values(), strict=True))
    if len(set(places.values())) != len(devices):
        raise ValueError(
            f"{len(devices)} devices share {len(set(places.values()))} chips: two cores a chip count as two devices. "
            "Run v4 with megacore, where a chip is one device."
        )
    inner = shape.model * shape.context
    if num_slices != shape.replica or math.prod(sizes) != shape.data * inner:
        raise ValueError(
            f"MeshShape has replica={shape.replica}, data x model x context={shape.data * inner}, and the devices are "
            f"{num_slices} slices of {'x'.join(map(str, sizes))} chips; a replica is one slice: "
            f"MeshShape(replica={num_slices}, data={math.prod(sizes)}), or parts of data for model and context."
        )
    placed = np.array(sorted(devices, key=places.__getitem__)).reshape(num_slices, *sizes)
    cut = cut_axis(sizes, inner)
    sizes[cut] //= inner
    placed = placed.reshape(*placed.shape[: cut + 1], sizes[cut], inner, *placed.shape[cut + 2 :])
    return np.moveaxis(placed, cut + 2, -1), (sizes[0], sizes[1], sizes[2])
